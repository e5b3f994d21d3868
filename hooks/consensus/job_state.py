"""The job state: the sum of the log's events, the same on every rank that has read the same entries.

One save counts at a time. A notice outranks background and manual saves: while a notice stands, those are void. A later event
that needs a save supersedes the earlier one. The saver then gives up or takes over the work that it has begun. A background
save is the exception: it never supersedes a save that its caller did not know of.

The log of the second store begins with the state of the first one's, as the rank that writes there first has it. A rank that had
read more carries its own state after it, and the state with more entries replaces the other. What was called or withdrawn in the
second log stays so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

from ..ipc.protocol import STALL_KINDS
from .events import (
    BackgroundEvent,
    BoundaryEvent,
    CarriedEvent,
    DamagedEvent,
    FailedEvent,
    LogEvent,
    ManualEvent,
    NoticeEvent,
    RevoteEvent,
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
    #: In the second store's log: number of entries of the first one's whose sum is in here. None: this is the first one's.
    carried: int | None = None
    #: In the second store's log: ids of notices that were called there, and of those that were withdrawn there.
    called: frozenset[str] = frozenset()
    withdrawn: frozenset[str] = frozenset()

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
        if self.includes(call):
            return on
        match call:
            case NoticeEvent():
                return on._noticed(call)._recorded(call.id, stands=True)
            case WithdrawnEvent(id=id):
                return on._withdrawn(id)._recorded(id, stands=False)
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
            case RevoteEvent(epoch=epoch):
                if on.wanted is None or on.wanted.epoch != epoch:
                    return on
                return replace(on, wanted=replace(on.wanted, epoch=on.epoch))
            case CarriedEvent():
                return on._with(call)
            case FailedEvent() | DamagedEvent() | UnknownEvent():
                return on

    def includes(self, call: LogEvent) -> bool:
        """Return whether this state has an entry of the second store's log already: it was carried from the first one.

        The notice may have been withdrawn since.
        """
        carried = 0 if self.carried is None else self.carried
        return isinstance(call, (NoticeEvent, WithdrawnEvent)) and 0 < call.was <= carried

    def carry(self, seconds_left: Callable[[NoticeEvent], float]) -> CarriedEvent:
        """Return the entry of the second store's log that carries this state of the first one's there.

        Args:
            seconds_left: returns the seconds that a notice has left now.
        """
        notices = tuple(replace(each, seconds_left=seconds_left(each)) for each in self.notices)
        if self.wanted is None:
            return CarriedEvent(self.epoch, notices)
        return CarriedEvent(self.epoch, notices, self.wanted.epoch, self.wanted.cause, self.wanted.boundary)

    def undecided(self, decided: int) -> bool:
        """Return whether a rank asks, in the second store, for other votes on the save that counts.

        That is a save for a notice, called for in the first store, whose decision the rank has not read. Other saves are not voted
        on again: a rank that was lost with the store would hold them up.

        Args:
            decided: the newest epoch whose decision the rank has read.
        """
        wanted = self.wanted
        if wanted is None or self.carried is None or wanted.cause != "notice":
            return False
        return decided < wanted.epoch <= self.carried

    def _with(self, call: CarriedEvent) -> JobState:
        """Return the state with the first log's, if that has more entries than the one in here.

        A save under way goes on if it counts in both. Otherwise some rank has given it up, and all vote again.
        """
        if self.carried is not None and call.heard <= self.carried:
            return self
        on = replace(self, carried=call.heard)
        there = {each.id for each in call.notices}
        for each in self.notices:
            if each.id not in there | self.called:
                on = on._withdrawn(each.id)
        for each in call.notices:
            if each.id not in self.withdrawn:
                on = on._noticed(each)
        if self.wanted is not None and self.wanted.epoch > call.heard:
            return on  # called for in the second store
        void = not call.epoch or (call.cause == "notice") is not bool(on.notices)
        if void or call.cause not in get_args(Cause):
            return replace(on, wanted=None)
        wanted = WantedSave(call.epoch, cast(Cause, call.cause), call.boundary)
        if self.carried is None or wanted == self.wanted:
            return replace(on, wanted=wanted)
        return replace(on, wanted=replace(wanted, epoch=on.epoch) if on.notices else None)

    def _recorded(self, id: str, *, stands: bool) -> JobState:
        if self.carried is None:
            return self
        called, withdrawn = self.called - {id}, self.withdrawn - {id}
        return replace(
            self,
            called=called | {id} if stands else called,
            withdrawn=withdrawn if stands else withdrawn | {id},
        )

    def _noticed(self, notice: NoticeEvent) -> JobState:
        """Return the state after a notice. A notice asks for a save if its machine was not departing before.

        A further notice for a departing machine is kept and asks for nothing. The departing machines stay the same, and so does the
        work of each rank. An earlier deadline is known to that machine itself. The first notice that is no drill, after drills,
        asks for a save: the drill's ranks may have ended their work, one by one.

        No machine goes for a stall. So a stall that a second machine sees joins the first one's save, unless its caller has ended
        that save already: no save would answer the second machine's agent. Such a stall asks for a save, which takes milliseconds if
        the step is committed. That holds even if another rank of the machine, whose save goes on, has called first.
        """
        joins = self.wanted is not None and notice.ended < self.wanted.epoch
        if any(each.id == notice.id for each in self.notices):
            if joins or notice.kind not in STALL_KINDS:
                return self
            return replace(self, wanted=self._wanted_for_notice())
        same = [
            each
            for each in self.notices
            if (joins if _is_one_stall(each, notice) else each.machine == notice.machine)
        ]
        on = replace(self, notices=(*self.notices, notice))
        if same and (notice.drill or any(not each.drill for each in same)):
            return on
        return replace(on, wanted=self._wanted_for_notice())

    def _wanted_for_notice(self) -> WantedSave:
        boundary = bool(self.notices) and self.wanted is not None and self.wanted.boundary
        return WantedSave(self.epoch, "notice", boundary)

    def _withdrawn(self, id: str) -> JobState:
        """Return the state after a withdrawal.

        While another notice stands, the save goes on, and the ranks share the work as before.
        """
        rest = tuple(each for each in self.notices if each.id != id)
        if len(rest) == len(self.notices):
            return self
        return replace(self, notices=rest, wanted=self.wanted if rest else None)


def _is_one_stall(one: NoticeEvent, other: NoticeEvent) -> bool:
    return one.kind in STALL_KINDS and other.kind in STALL_KINDS
