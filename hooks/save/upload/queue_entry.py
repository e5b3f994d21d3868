"""An entry of a save's queue that is no object: an announcement, a claim, a manifest, a marker or an index.

Objects never wait for an entry. An entry waits for the objects that it names, and for the entries before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ...state.state_tensor import Tier
from ..cancel_scope import CancelScope

#: A request of the store, called with the seconds until the deadline. Each call puts the same bytes under the same key.
Put = Callable[[float | None], object]


class EntryState(Enum):
    WAITING = "waiting"
    SENDING = "sending"
    #: The store has confirmed it, and no failure was heard since.
    STORED = "stored"
    #: It was stored, and the store has failed since: it is put again.
    DOUBTED = "doubted"
    #: It will not be put again; `error` says why.
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class QueueEntry:
    """One such request, and how far it is."""

    #: What it puts, for messages.
    what: str
    #: Called once, on the saving thread, when the turn of the entry comes. It returns the request.
    make: Callable[[], Put]
    #: The objects that it names, by their tiers: they are in the store, and not in doubt, before it is put.
    tiers: Sequence[Tier] = ()
    #: The entries that are in the store before it is put.
    after: Sequence[QueueEntry] = ()
    #: Seconds for it; None: until the deadline of the save.
    limit: float | None = None
    #: The errors that cost the save nothing. Any other error of the entry ends the save.
    tolerated: tuple[type[Exception], ...] = ()
    #: Whether it is tried again while it fails transiently.
    again: bool = True
    state: EntryState = EntryState.WAITING
    error: BaseException | None = None
    #: When the store confirmed it, and the seconds of the answers.
    at: float = 0.0
    seconds: float = 0.0
    put: Put | None = field(default=None, repr=False)
    #: Whether its request has begun since it was handed to a thread.
    sent: bool = False
    #: The part of the save's scope in which it is tried.
    scope: CancelScope | None = field(default=None, repr=False)

    @property
    def stored(self) -> bool:
        return self.state is EntryState.STORED

    @property
    def ended(self) -> bool:
        """Whether it is in the store or has failed."""
        return self.state in (EntryState.STORED, EntryState.FAILED)

    @property
    def fatal(self) -> bool:
        """Whether its failure ends the save."""
        return self.error is not None and not isinstance(self.error, self.tolerated)

    def fail(self, error: BaseException) -> None:
        self.state, self.error = EntryState.FAILED, error
