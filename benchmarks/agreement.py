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


def measure(scale: Scale) -> Iterator[Row]:
    for ranks in scale.of((2, 4, 8, 16), (2,)):
        words = ["-m", "benchmarks.agreeing", str(ranks), str(scale.of(200, 3))]
        with child(words, cwd=scale.folder, answers=True) as process:
            seconds = [float(json.loads(line)) for line in lines(process)]
        yield Row(f"call to decision, {ranks} ranks", "ms", tuple(each * 1000 for each in seconds))
