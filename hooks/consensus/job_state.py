"""The job state: the sum of the log's events, the same on every rank that has read the same entries.

One save counts at a time. A notice outranks background and manual saves: while a notice stands, those are void. A later event
that needs a save supersedes the earlier one. The saver then gives up or takes over the work that it has begun. A background
save is the exception: it never supersedes a save that its caller did not know of.
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

#: The cause of a save.
Cause = Literal["notice", "background", "manual"]


@dataclass(frozen=True, slots=True)
class WantedSave:
    """The save that counts."""

    #: The event's number in the log, which also names its agreement and its save.
    epoch: int
    cause: Cause
    #: Only parked boundaries will do: some rank's state has moved between two of them.
    boundary: bool = False


@dataclass(frozen=True, slots=True)
class JobState:
    """The job state after some entries of the log. `after` folds in the next entry."""

    #: Number of entries read.
    epoch: int = 0
    #: Notices that stand, in the order in which they came.
    notices: tuple[NoticeEvent, ...] = ()
    #: The save that all ranks make; None: there is none, and training goes on.
    wanted: WantedSave | None = None

    @property
    def departing(self) -> frozenset[str]:
        """The machines of the standing notices, which go or drill."""
        return frozenset(notice.machine for notice in self.notices)

    @property
    def drill(self) -> bool:
        """Whether notices stand, and all of them are drills."""
        return bool(self.notices) and all(notice.drill for notice in self.notices)

    def departing_ranks(self, machines: Sequence[str]) -> frozenset[int]:
        """Return the ranks on departing machines.

        Args:
            machines: the machine of each rank, in the order of ranks.
        """
        return frozenset(rank for rank, machine in enumerate(machines) if machine in self.departing)

    def counts(self, epoch: int) -> bool:
        """Return whether the save of the event with this number is still the one that counts."""
        return self.wanted is not None and self.wanted.epoch == epoch

    def after(self, call: LogEvent) -> JobState:
        """Return the job state after the next entry of the log."""
        on = replace(self, epoch=self.epoch + 1)
        match call:
            case NoticeEvent():
                return on._noticed(call)
            case WithdrawnEvent(id=id):
                return on._withdrawn(id)
            case BackgroundEvent(heard=heard):
                # The caller knew of no save under way, but one may have been called for that it had not received yet.
                unheard = heard is not None and on.wanted is not None and on.wanted.epoch > heard
                return on if on.notices or unheard else replace(on, wanted=WantedSave(on.epoch, "background"))
            case ManualEvent():
                return on if on.notices else replace(on, wanted=WantedSave(on.epoch, "manual"))
            case BoundaryEvent(epoch=epoch):
                if on.wanted is None or on.wanted.epoch != epoch:
                    return on  # the save does not count any more, or another rank has sent this event before
                return replace(on, wanted=WantedSave(on.epoch, on.wanted.cause, boundary=True))
            case FailedEvent() | UnknownEvent():
                return on

    def _noticed(self, notice: NoticeEvent) -> JobState:
        """Return the state after a notice. A notice asks for a save if its machine was not departing before.

        A further notice for a departing machine is kept and asks for nothing. The departing machines stay the same, and so does the
        work of each rank. An earlier deadline is known to that machine itself. The first notice that is no drill, after drills,
        asks for a save: the drill's ranks may have ended their work, one by one.
        """
        if any(each.id == notice.id for each in self.notices):
            return self
        same = [each for each in self.notices if each.machine == notice.machine]
        on = replace(self, notices=(*self.notices, notice))
        if same and (notice.drill or any(not each.drill for each in same)):
            return on
        boundary = bool(self.notices) and self.wanted is not None and self.wanted.boundary
        return replace(on, wanted=WantedSave(self.epoch, "notice", boundary))

    def _withdrawn(self, id: str) -> JobState:
        """Return the state after a withdrawal.

        While another notice stands, the save goes on, and the ranks share the work as before.
        """
        rest = tuple(each for each in self.notices if each.id != id)
        if len(rest) == len(self.notices):
            return self
        return replace(self, notices=rest, wanted=self.wanted if rest else None)
