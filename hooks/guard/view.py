"""A guard as threads beside training see it, such as those that mark its saves in an experiment tracker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from ...providers.clock import Clock
from ...providers.stores.base import BlobStore
from ..ipc.notice import PreemptionNotice
from ..save.request import SavedCheckpoint
from .parts import GuardParts


@dataclass(frozen=True, slots=True)
class GuardView:
    """A guard as a thread beside training sees it, such as one that marks it in a tracker. `Guard.view` returns it.

    Attributes:
        rank: this process's rank in the job.
        run_id: the name of the run.
        attempt: the number of this start of the run.
        store: the store.
        clock: the guard's clock.
        saving: returns whether a save for a notice is in progress.
        completed: returns the completed steps.
        follow: puts each restore and commit from now on into a queue, as `Followers` does.
    """

    rank: int
    run_id: str
    attempt: int
    store: BlobStore
    clock: Clock
    saving: Callable[[], bool]
    completed: Callable[[], int]
    follow: Callable[[SimpleQueue[Any]], None]


class Followers:
    """The queues that get each restore and commit, as (step, `SavedCheckpoint` or None, its notice or None).

    Queues, and no functions: only spotguard's own code runs on the threads that save.
    """

    def __init__(self) -> None:
        self._queues: list[SimpleQueue[Any]] = []
        #: The step of the last restore; None before the first.
        self._restored: int | None = None

    def add(self, events: SimpleQueue[Any]) -> None:
        """Put the last restore, and all that comes from now on, into a queue. Any thread may call this."""
        self._queues.append(events)
        if self._restored is not None:
            events.put((self._restored, None, None))

    def restored(self, step: int) -> None:
        self._restored = step
        self._announce(step, None, None)

    def committed(self, saved: SavedCheckpoint, notice: PreemptionNotice | None = None) -> None:
        self._announce(saved.step, saved, notice)

    def _announce(self, step: int, saved: SavedCheckpoint | None, notice: PreemptionNotice | None) -> None:
        for events in self._queues:
            events.put((step, saved, notice))


def view_of(parts: GuardParts, followers: Followers) -> GuardView:
    """Return the view of a guard with these parts."""
    return GuardView(
        parts.rank,
        parts.run_id,
        parts.checkpointer.attempt,
        parts.store,
        parts.clock,
        lambda: parts.saver.saving,
        lambda: parts.gate.place.completed,
        followers.add,
    )
