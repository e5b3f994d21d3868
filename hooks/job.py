"""What the saving thread is asked for, and what became of it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from ..providers.errors import SpotguardError
from .alarm import Alarm
from .checkpoints.catalog import Whole
from .checkpoints.effort import Effort
from .format.manifest import Kind
from .saved import Saved


@dataclass(slots=True)
class Job:
    """One save, or what else has to wait its turn behind one."""

    kind: Kind
    effort: Effort
    alarm: Alarm | None = None
    #: Which call of the ranks asked for it; 0 in a job of one process.
    epoch: int = 0
    #: Ranks whose machine goes, as of that call.
    doomed: frozenset[int] = frozenset()
    #: Only a parked boundary will do: some rank's state moved while it was read.
    at_boundary: bool = False
    #: The gate was shut when it was asked for, and stays shut for it until its turn comes.
    holds: bool = False
    #: A later call has taken its place: what becomes of it is nobody's answer.
    superseded: bool = False
    #: Nothing is saved: only the plan is made.
    rehearsal: bool = False
    #: Nothing is saved: what an earlier process staged is taken to the store.
    staged: Whole | None = None
    #: Why a notice lets this background save come to its end.
    promoted: str = ""
    #: What became of such a one, where that was no commit.
    after: str = ""
    #: The URL of the newest checkpoint when it was asked for.
    before: str = ""
    done: threading.Event = field(default_factory=threading.Event)
    saved: Saved | None = None
    error: SpotguardError | None = None

    @property
    def is_checkpoint(self) -> bool:
        """A background checkpoint, and nothing else that is done beside training."""
        return self.kind == "background" and not self.rehearsal and self.staged is None
