"""Where the training thread is, and whether it may go on: the gate's rule, pure.

`Gate` puts a lock and a condition around it, and each method here is one atomic act under that lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import FrameType


class Shut(Enum):
    """How the gate is shut."""

    OPEN = "open"
    #: Stop before anything changes: a clean state is wanted as it stands.
    BEFORE_CHANGE = "before change"
    #: Let the running step go to its end: only a parked boundary will do.
    AT_BOUNDARY = "at boundary"


@dataclass(slots=True)
class GateRule:
    """Where the training thread is, and whether it may go on. Every method is one atomic act under the lock."""

    completed: int = 0
    #: Between the first change after a boundary and the end of the next boundary.
    dirty: bool = False
    #: Parked at the end of `guard.step()`: all of this step is done, and nothing of the next.
    at_boundary: bool = False
    shut: Shut = Shut.OPEN
    #: Completed steps at which the shut gate holds; None: wherever it meets training first.
    target: int | None = None
    #: The step is complete and its last copies are being made; `rest` comes next.
    resting: bool = False
    #: One of several ranks. None stops where it is clean: a peer that is a little further on waits for it in a collective
    #: of the next step. All go on to their next change, and there every collective of that step is over.
    together: bool = False
    #: Completed steps at whose boundary this rank is held while others go on: they wait for it in a collective of the next
    #: step. Should it be told to leave there, it goes on to its next change first, like them.
    awaited: int | None = None
    #: The threads that are inside `optimizer.step()`, and the frame that runs it.
    changing: dict[int, FrameType | None] = field(default_factory=dict)
    #: The thread that is between the begin and the end of a boundary; None: none is.
    bounding: int | None = None
    #: The boundary that was begun last found the state clean.
    found_clean: bool = False
    #: The thread that is parked at its boundary, or is about to leave it: steps of others begin behind it.
    held: int | None = None

    def may_change(self, thread: int = 0, frame: FrameType | None = None) -> bool:
        """The optimizer is about to step in this thread. True: the state is dirty from here on; False: park and ask again.

        Another thread's boundary is never changed underneath, neither while its copies are made nor while it is held.
        """
        if self.bounding not in (None, thread):
            return False
        if self.at_boundary and (self.shut is not Shut.OPEN or self.held not in (None, thread)):
            return False
        if self._may_be_dirty():
            self.changing.setdefault(thread, frame)
            return True
        return False

    def may_begin_boundary(self, thread: int = 0) -> bool:
        """`guard.step()` begins to copy the small things. A clean state (a GradScaler's skipped step) that is
        wanted as it stands must not have them changed underneath, and another thread's step must end before:
        False: park and ask again."""
        self.changing.pop(thread, None)  # a step of this very thread has ended, perhaps in an exception
        clean = not self.dirty
        if self.changing or not self._may_be_dirty():
            return False
        self.bounding, self.found_clean = thread, clean
        return True

    def may_copy_again(self, thread: int = 0) -> bool:
        """A boundary that is there already is copied anew: nothing is to be had meanwhile, and then the same step. (Who
        offered the next one would have all ranks wait for it, this one included.)"""
        if not self.may_begin_boundary(thread):
            return False
        self.resting = True
        return True

    def abort_boundary(self, *, unchanged: bool) -> None:
        """The boundary that was begun does not come. Where nothing was changed, a state that was clean is so again."""
        if unchanged and self.found_clean and self.bounding is not None:
            self.dirty = self.resting = False
        self.bounding = None

    def end_change(self, thread: int, frame: FrameType | None) -> None:
        """A step has ended in this thread. One inside another (a wrapper's) ends nothing."""
        if self.changing.get(thread) in (None, frame):
            self.changing.pop(thread, None)

    def _may_be_dirty(self) -> bool:
        if self.at_boundary and not self._may_go_on():
            return False  # Ctrl-C has called the thread away that was parked there: that boundary is read all the same
        if self.dirty or self.shut is not Shut.BEFORE_CHANGE or self._behind():
            self.dirty, self.resting, self.at_boundary = True, False, False
            return True
        return False

    def complete(self) -> bool:
        """One more step is complete. True: nobody wants it, go on; False: `rest` here."""
        self.completed += 1
        if self._may_go_on():
            self.dirty = False
            self.bounding = None
            return True
        self.resting = True
        return False

    def rest(self, thread: int = 0) -> None:
        """All copies are made; the training thread parks at its boundary."""
        self.dirty = self.resting = False
        self.bounding = None
        self.at_boundary, self.held = True, thread

    def may_leave_boundary(self, thread: int = 0) -> bool:
        if self._may_go_on():
            self.at_boundary, self.held = False, None
            return True
        return False

    def close(self, how: Shut, target: int | None = None, *, awaited: bool = False) -> None:
        self.shut = how
        self.target = target
        if awaited or how is Shut.OPEN:
            self.awaited = target

    def may_end_here(self) -> bool:
        """Whether who is told to leave does so where it is parked."""
        return not (self.at_boundary and self.awaited == self.completed)

    def steady(self) -> bool:
        """Whether the state stands still now, and will until the gate opens."""
        if self._behind():
            return False
        if self.shut is Shut.BEFORE_CHANGE:
            return not self.dirty
        return self.shut is Shut.AT_BOUNDARY and self.at_boundary

    def earliest(self) -> int:
        """The fewest completed steps at which the gate, shut as it is, can hold training."""
        held = self.at_boundary or self.resting
        if self.shut is Shut.AT_BOUNDARY:
            return self.completed if held else self.completed + 1
        return self.completed + 1 if self.dirty and not self.resting else self.completed

    def _may_go_on(self) -> bool:
        """From a boundary to what comes before the next change."""
        return self.shut is Shut.OPEN or self._behind() or (self.together and self.shut is Shut.BEFORE_CHANGE)

    def _behind(self) -> bool:
        return self.target is not None and self.completed < self.target
