"""A network between two machines is cut: seconds until the silence is told and the state committed, and until training moves again.

Two machines in namespaces (`tests/e2e/machines.py`), a rank of DDP over gloo on each. The second one's wire is pulled for some
seconds, or for good. The first one holds the rendezvous.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import pytest

from tests.e2e.machines import Rack, address
from tests.e2e.processes import Running
from tests.e2e.test_silent_machines import ERRING

from .rows import Row, Unable
from .scale import Scale

_MEETING = ("--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=job")
_PATIENCE = 300.0


def measure(scale: Scale) -> Iterator[Row]:
    os.environ.setdefault("XDG_RUNTIME_DIR", str(scale.folder))  # sockets of the machines lie in it
    for seconds in scale.of((5.0, 20.0, 60.0, None), (20.0,)):
        cuts = [_cut(scale, seconds, number) for number in range(scale.of(3, 1))]
        name = "for good" if seconds is None else f"for {seconds:.0f} s"
        for what, values in (
            (f"cut {name}: until its silence is told", [cut.silent for cut in cuts]),
            ("  from its healing to the next step", [cut.moves for cut in cuts if cut.moves is not None]),
            ("  until the step is committed", [cut.committed for cut in cuts if cut.committed is not None]),
        ):
            if values:
                yield Row(what, "s", tuple(values))


class _Cut:
    """One cut: the seconds until what became of it."""

    def __init__(self, runs: list[Running], rack: Rack, seconds: float | None) -> None:
        first, began = runs[0], time.monotonic()
        rack.nodes[1].cut()
        first.err.until("machine node2 of run job is silent", _PATIENCE)
        self.silent = time.monotonic() - began
        self.committed: float | None = None
        self.moves: float | None = None
        if seconds is None:
            first.err.until("committed step", _PATIENCE)
            self.committed = time.monotonic() - began
            return
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        rack.nodes[1].plug()
        healed = time.monotonic()
        for run in runs:
            run.out.until("goes on", _PATIENCE)
        self.moves = time.monotonic() - healed
        if [*rack.store.glob("job/checkpoints/*/COMMIT.json")]:
            marker = next(rack.store.glob("job/checkpoints/*/COMMIT.json"))
            self.committed = marker.stat().st_mtime - (time.time() - (time.monotonic() - began))


def _cut(scale: Scale, seconds: float | None, number: int) -> _Cut:
    folder = scale.folder / f"{seconds}-{number}"
    folder.mkdir()
    try:
        with Rack(folder) as rack:
            nodes = [rack.add(), rack.add()]
            launcher = [sys.executable, "-m", "torch.distributed.run", *_MEETING]
            job = [f"--rdzv-endpoint={address(1)}:29400", ERRING, "100000", "paced", "20"]
            runs = [node.guarded("--every off", *launcher, *job) for node in nodes]
            for run in runs:
                run.out.until("^rank [01] at step 20$", _PATIENCE)
            return _Cut(runs, rack, seconds)
    except (pytest.skip.Exception, pytest.fail.Exception) as why:
        raise Unable(str(why)) from None
