"""How long all ranks of a job take from a call to one decision, over the job's own store.

From the moment at which one rank calls (a notice, say) until the last of them has the decision in its saving thread.
Ranks are processes of this machine, so many of them share its cores: that is most of what grows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from .children import child, lines
from .rows import Row
from .scale import Scale
from .simulated_agreement import service_times, simulate

#: Milliseconds for 16 ranks of this machine, and seconds for thousands of machines.
_LOCAL, _SIMULATED = 10.0, 1.0


def measure(scale: Scale) -> Iterator[Row]:
    for ranks in scale.of((2, 4, 8, 16), (2,)):
        words = ["-m", "benchmarks.agreeing", str(ranks), str(scale.of(200, 3))]
        with child(words, cwd=scale.folder, answers=True) as process:
            seconds = [float(json.loads(line)) for line in lines(process)]
        goal = _LOCAL if ranks == 16 else None
        yield Row(
            f"call to decision, {ranks} ranks", "ms", tuple(each * 1000 for each in seconds), figure=goal
        )
    times = service_times()
    for ranks in scale.of((128, 1024, 4096, 10_000), (8,)):
        for kind, replicas in (("sharded", False), ("replicated", True)):
            what = f"simulated, {ranks:,} ranks with {kind} state"
            one = simulate(ranks, times, replicas=replicas)
            yield Row(f"{what}: call to decision", "s", (one.seconds,), figure=_SIMULATED)
            yield Row(f"{what}: operations of the store", "operations", (float(one.operations),))
            yield Row(f"{what}: operations of one rank, at most", "operations", (float(one.most),))
            yield Row(f"{what}: the store works", "s", (one.busy,))
