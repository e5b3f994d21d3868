"""The plan of one run of the script: written by the harness, read by each training process of the run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

#: Environment variable with the path of the plan. The recorder records every training process that has it.
VARIABLE = "SPOTGUARD_PROVE"

#: Optimizer steps without a boundary, per step of the plan, after which a recorder ends the run.
NEVER = 10

#: A manual `guard.preempt`, a notice through `spotguard run`, or the end of the machine without a notice.
ActionKind = Literal["preempt", "notice", "kill"]

#: A place in one turn of the training loop. The first is the boundary itself, `guard.step()`.
Place = Literal[
    "boundary", "forward", "optimizer", "after optimizer", "epoch end", "evaluation", "save", "guard.save()"
]


@dataclass(frozen=True, slots=True)
class Action:
    """The way in which the harness ends a run early."""

    kind: ActionKind
    #: Completed steps after which the action is due.
    step: int
    at: Place = "boundary"


@dataclass(frozen=True, slots=True)
class LifePlan:
    """One run of the script, from its start to its end or to its action."""

    #: The run's name in the report and in errors.
    name: str
    #: Directory of the records.
    folder: str
    #: The copy of the working directory that the script runs in.
    workdir: str
    #: URL of the store for checkpoints. It overrides the script's.
    store: str
    run_id: str
    #: Boundaries after which the run ends.
    steps: int
    #: Seconds without a completed step after which the run counts as hung.
    stall: float
    #: Seed of the generators that the script does not seed. A resumed run gets another seed, because a new process has
    #: other random numbers.
    seed: int = 0
    #: Steps between two background checkpoints; 0 for none.
    every: int = 0
    action: Action | None = None
    #: Measure the run (`measurement`), and end it with an emergency save, instead of recording it for a comparison.
    measures: bool = False
    #: The directory for staged background checkpoints; "" for none.
    stage: str = ""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> LifePlan:
        body: dict[str, Any] = json.loads(path.read_text())
        action = body.pop("action")
        return cls(**body, action=None if action is None else Action(**action))

    @property
    def acted(self) -> Path:
        """Return the path of a file that exists once the action was carried out.

        A process that a launcher restarts thereby does not act twice.
        """
        return Path(self.folder, "acted")
