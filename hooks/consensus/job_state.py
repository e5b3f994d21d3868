"""Where the job stands after so many calls: the same on every rank that has read the same entries.

One save counts at a time. A notice outranks what is saved beside training and what is saved by hand: while one stands,
those are void. A later call that needs a save supersedes the earlier one, and what was begun for it is given up or
taken over by whoever saves; but what is saved beside training never supersedes what its caller had not heard of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .events import (
    BackgroundEvent,
    BoundaryEvent,
    FailedEvent,
    LogEvent,
    ManualEvent,
    NoticeEvent,
    UnknownEvent,
    WithdrawnEvent,
)

#: What a save is for.
Cause = Literal["notice", "background", "manual"]


@dataclass(frozen=True, slots=True)
class WantedSave:
    """The save that counts."""

    #: The call's number in the log; its agreement, and what is saved for it, go by that number.
    epoch: int
    cause: Cause
    #: Only parked boundaries will do: a state has moved between two of them.
    boundary: bool = False


@dataclass(frozen=True, slots=True)
class JobState:
    """Fold the log with `after`, entry by entry."""

    #: Entries read.
    epoch: int = 0
    #: Those that stand, in the order in which they came.
    notices: tuple[NoticeEvent, ...] = ()
    #: None: nobody saves for all, training goes on.
    wanted: WantedSave | None = None

    @property
    def departing(self) -> frozenset[str]:
        """The machines that go, or drill."""
        return frozenset(notice.machine for notice in self.notices)

    @property
    def drill(self) -> bool:
        """Whether notices stand, and every one is a drill."""
        return bool(self.notices) and all(notice.drill for notice in self.notices)

    def doomed_ranks(self, machines: Sequence[str]) -> frozenset[int]:
        """
        Args:
            machines: of each rank, the machine that it runs on.
        """
        return frozenset(rank for rank, machine in enumerate(machines) if machine in self.departing)

    def counts(self, epoch: int) -> bool:
        """Whether the save of this call is (still) the one that is wanted."""
        return self.wanted is not None and self.wanted.epoch == epoch

    def after(self, call: LogEvent) -> JobState:
        """Where the job stands once the next entry is read."""
        on = replace(self, epoch=self.epoch + 1)
        match call:
            case NoticeEvent():
                return on._noticed(call)
            case WithdrawnEvent(id=id):
                return on._withdrawn(id)
            case BackgroundEvent(heard=heard):
                # Whoever asks knows of no save under way; of one that was called meanwhile it has not heard yet.
                unheard = heard is not None and on.wanted is not None and on.wanted.epoch > heard
                return on if on.notices or unheard else replace(on, wanted=WantedSave(on.epoch, "background"))
            case ManualEvent():
                return on if on.notices else replace(on, wanted=WantedSave(on.epoch, "manual"))
            case BoundaryEvent(epoch=epoch):
                if on.wanted is None or on.wanted.epoch != epoch:
                    return on  # said of a save that does not count any more; or somebody has said it already
                return replace(on, wanted=WantedSave(on.epoch, on.wanted.cause, boundary=True))
            case FailedEvent() | UnknownEvent():
                return on

    def _noticed(self, notice: NoticeEvent) -> JobState:
        """A save for each machine that is newly doomed. A further notice for one that is doomed already is remembered
        and asks for nothing: who goes, and so who writes what, stays as it is, and its earlier deadline that machine
        knows by itself. Unless it is the first that is no drill: what a drill's ranks have done by now they may have
        ended, one by one."""
        if any(each.id == notice.id for each in self.notices):
            return self
        same = [each for each in self.notices if each.machine == notice.machine]
        on = replace(self, notices=(*self.notices, notice))
        if same and (notice.drill or any(not each.drill for each in same)):
            return on
        boundary = bool(self.notices) and self.wanted is not None and self.wanted.boundary
        return replace(on, wanted=WantedSave(self.epoch, "notice", boundary))

    def _withdrawn(self, id: str) -> JobState:
        """Nobody begins anew while another notice stands: those who were to share the work go on sharing it."""
        rest = tuple(each for each in self.notices if each.id != id)
        if len(rest) == len(self.notices):
            return self
        return replace(self, notices=rest, wanted=self.wanted if rest else None)
