"""The other ranks of the job, as the saving thread of this one meets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from .agreed import Agreed
from .checkpoints.effort import Abandoned
from .job import Job

if TYPE_CHECKING:
    from .agreement.offers import Decision


class Stands(Abandoned):
    """Ranks are gone, and a complete checkpoint is as new as what the others could save without them."""


class Assembly(Protocol):
    """All methods but `decide` return at once."""

    @property
    def lost(self) -> bool:
        """The job's store is gone: nobody calls, and nobody is heard."""
        ...

    def counts(self, epoch: int) -> bool:
        """Whether the ranks still want the save of this call: no later one, no notice and no end of one was heard."""
        ...

    def decide(
        self,
        job: Job,
        step: int | None,
        left: Callable[[], float],
        over: Callable[[], bool],
        *,
        boundary: bool,
        parks: bool,
    ) -> Decision:
        """Offer a step to the others; returns what is decided, at the latest when nothing is `left` or it is `over`.

        Args:
            step: the earliest that this rank can still give; None: it has no state yet.
            boundary: it can give none but at a parked boundary that it has not come to yet.
            parks: it is held at that boundary until it has saved.
        """
        ...

    def agreed(self, job: Job, decision: Decision, step: int) -> Agreed:
        """What this rank's save is to do."""
        ...

    def again(self, job: Job, why: str) -> None:
        """This rank's state moved while it was read: call for another save, at the next boundary."""
        ...

    def failed(self, job: Job, why: str) -> None:
        """This rank's part of a save will not be there: the others need not wait for it."""
        ...

    def by_hand(self, step: int) -> None:
        """Call for a save of this very step; the first rank does, for all."""
        ...

    def over(self, id: str, why: str) -> None:
        """A notice of this machine is void, and nobody else will say so: call for training to go on."""
        ...
