"""ETTR of four machines that are preempted, fail, hang and get lost: measured on a rack, and replayed over a real trace of spot machines.

The rack is made of network namespaces on this host (`interruptions.py`), with a rank of DDP over gloo on each machine. Everything that
can be provoked happens to it within twenty minutes, which no job has to bear: its ETTR shows that `spotguard report` reckons the same as
the job's own log, and its downtimes go into the replay (`ettr_replay.py`), where all comes as often as was published.

ETTR: steps that count in the end × median step ÷ wall time, without the time in which a machine was waited for.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from random import Random

import pytest

from .ettr_replay import replayed
from .interruptions import CUT, LOST, PREEMPTION, InterruptedJob, InterruptionCost, by_kind, draw, useful
from .rows import Row, Unable
from .scale import Scale
from .trace import JOBS

SEED = 11
WORLD = 4
KINDS = (
    *(PREEMPTION,) * 4,
    *(LOST, LOST, CUT),
    *("gpu", "gpu", "killed", "killed", "stall", "stall"),
    *("network", "program", "data", "loader-worker", "host-memory", "disk-full"),
)
#: Steps from one interruption to the next, seconds of a step, and Mbit/s of a machine's link.
APART, PAUSE, MBIT = 120, 0.2, 1000.0
#: Passes over the trace.
TIMES = 200


def measure(scale: Scale) -> Iterator[Row]:
    os.environ.setdefault("XDG_RUNTIME_DIR", str(scale.folder))  # sockets of the machines lie in it
    costs: list[InterruptionCost] = []
    try:
        yield from _interrupted(scale, costs)
    except (pytest.skip.Exception, pytest.fail.Exception) as why:
        raise Unable(str(why)) from None
    yield from replayed(by_kind(costs), JOBS[1], scale.of(TIMES, 3), SEED)


def _interrupted(scale: Scale, costs: list[InterruptionCost]) -> Iterator[Row]:
    kinds, apart = scale.of(KINDS, ("killed", PREEMPTION)), scale.of(APART, 30)
    world = scale.of(WORLD, 2)
    events = draw(kinds, apart, world, Random(SEED))
    results = scale.folder / "results"
    if not scale.tiny:
        results = Path(__file__).parent / "results" / time.strftime("ettr-%Y-%m-%d-%H%M")
    results.mkdir(parents=True)
    steps = apart * (len(events) + 1)
    with InterruptedJob(scale.folder / "job", world, events, scale.of(PAUSE, 0.05), steps, MBIT) as job:
        try:
            job.train()
        finally:
            for number, run in enumerate([*job.ended, *job.runs]):
                (results / f"run-{number}.txt").write_text(run.account())
        starts, body = job.starts(), job.reported()
        costs += job.costs(starts)
    wall = starts[-1].lines[-1][0] - starts[0].lines[0][0]
    counts = useful(starts)
    (results / "costs.json").write_text(json.dumps([asdict(cost) for cost in costs], indent=1))
    (results / "report.json").write_text(json.dumps(body, indent=1))
    hours = f"{len(events)} interruptions in {wall / 60:.0f} min"
    ours = 100 * counts / wall
    yield Row(f"ETTR, {hours}, by the job's log", "%", (ours,), peer=100 * body["ettr"], peer_name="report's")
    yield Row("  without queueing", "%", (100 * counts / (wall - job.waited),))
    yield Row("  its checkpoints beside training", "% of the time", (100 * body["cost"] / wall,))
    for kind, found in by_kind(costs).items():
        yield Row(f"{kind}: until training goes on", "s", tuple(cost.down for cost in found))
        yield Row("  steps lost", "", tuple(float(cost.lost) for cost in found))
