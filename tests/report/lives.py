"""Three lives of a run, made by hand, whose figures are known: preempted, ended by an error, finished."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spotguard.report.facts import AttemptFacts, CheckpointFact, EventFact, RunFacts

START = 1_795_000_000.0


def history(began: float, first: int, **facts: Any) -> dict[str, Any]:
    """The facts of an attempt that takes a second for a step and saves every 60 s."""
    usual = {"step_seconds": 1.0, "saves": 0, "cost": 0.0, "periodic": None, "interval": 60.0}
    return {"began": START + began, "first": first, **usual, **facts}


def checkpoint(step: int, at: float, *, emergency: bool = False) -> CheckpointFact:
    return CheckpointFact(step, START + at, emergency, 1000)


#: Two machines, 100 steps, its own checkpoint at step 60, preempted at 110 s.
PREEMPTED = AttemptFacts(
    1,
    started=START,
    world=4,
    machines=("a", "b"),
    machine_count=2,
    history=history(10, 0, saves=1, cost=2.0, periodic=60, completed=100),
    checkpoints=(checkpoint(60, 70), checkpoint(100, 110, emergency=True)),
    events=(EventFact("notice", START + 110, "terminate notice from aws", 100, True, 2.0),),
)
#: A machine was there at 150 s. 60 steps, the last 10 of them lost, ended by an error at 240 s.
FAILED = AttemptFacts(
    2,
    started=START + 170,
    world=1,
    machines=("c",),
    machine_count=1,
    available=START + 150,
    history=history(180, 100, saves=1, cost=3.0, periodic=150, completed=160),
    checkpoints=(checkpoint(150, 230),),
    events=(EventFact("error", START + 240, "an error of the program (ValueError: x)", 160, False),),
)
#: 50 steps from step 150 on, saved by the script, ended by itself at 310 s.
FINISHED = AttemptFacts(
    3,
    started=START + 250,
    world=1,
    machines=("c",),
    machine_count=1,
    available=START - 9000,
    history=history(255, 150, saves=1, cost=1.0, periodic=200, completed=200),
    checkpoints=(checkpoint(200, 305),),
    events=(EventFact("ended", START + 310, "", 200),),
)
EARLIER = [
    {**history(10, 0, cost=2.0, saves=1), "attempt": 1, "last": 100},
    {**history(180, 100, cost=3.0, saves=1), "attempt": 2, "last": 150},
]
RUN = RunFacts(
    "file:///store",
    "run",
    (PREEMPTED, FAILED, FINISHED),
    {**FINISHED.history, "earlier": EARLIER},
    START + 400,
)


def only(
    *attempts: AttemptFacts, now: float = 400.0, earlier: list[dict[str, Any]] | None = None
) -> RunFacts:
    """A run of these attempts."""
    newest = {**attempts[-1].history, "earlier": earlier or []} if attempts else {}
    return replace(RUN, attempts=attempts, history=newest, now=START + now)
