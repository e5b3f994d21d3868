"""The plan of one run of the script: written by the harness, read by each training process of the run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

#: Names the file of the plan. Whoever has it in the environment is recorded.
VARIABLE = "SPOTGUARD_PROVE"

#: A notice by hand, a notice through `spotguard run`, or the end of the machine without one.
ActionKind = Literal["preempt", "notice", "kill"]

#: A place in the turn of the loop. The first is the boundary itself, `guard.step()`.
Place = Literal["boundary", "forward", "optimizer", "after optimizer", "epoch end", "evaluation", "save"]


@dataclass(frozen=True, slots=True)
class Action:
    """How the harness ends a run early."""

    kind: ActionKind
    #: Completed steps from which on it is due.
    step: int
    at: Place = "boundary"


@dataclass(frozen=True, slots=True)
class LifePlan:
    """One run of the script, from its start to its end or to its action."""

    #: Its name on the page and in errors.
    name: str
    #: Where the records go.
    folder: str
    #: The copy of the working folder that the script runs in.
    workdir: str
    #: Where checkpoints go, whatever the script says.
    store: str
    run_id: str
    #: Boundaries after which the run ends.
    steps: int
    #: Seconds without a completed step after which the run counts as hung.
    stall: float
    #: What generators are seeded with that the script itself does not seed. A resumed life has another one, as a new process
    #: has other random numbers.
    seed: int = 0
    #: Steps between two background checkpoints; 0 for none.
    every: int = 0
    action: Action | None = None

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> LifePlan:
        body: dict[str, Any] = json.loads(path.read_text())
        action = body.pop("action")
        return cls(**body, action=None if action is None else Action(**action))

    @property
    def acted(self) -> Path:
        """There once the action has been carried out: a process that a launcher starts again does not act twice."""
        return Path(self.folder, "acted")


def plan_of(env: Mapping[str, str] = os.environ) -> LifePlan | None:
    """The plan that this process is to follow; None where nobody proves anything."""
    path = env.get(VARIABLE, "")
    return LifePlan.read(Path(path)) if path else None
