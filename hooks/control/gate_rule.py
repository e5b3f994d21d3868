"""The gate's rule: the position of the training thread, and whether that thread may go on. Pure.

`Gate` adds a lock and a condition. Each method here is one atomic act under that lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import FrameType


class Shut(Enum):
    """How the gate is shut."""

    OPEN = "open"
    #: Stop training before anything changes. The saver wants a clean state as it stands.
    BEFORE_CHANGE = "before change"
    #: Let the running step finish. The saver needs training parked at a boundary.
    AT_BOUNDARY = "at boundary"


@dataclass(slots=True)
class GateRule:
    """The position of the training thread, and whether it may go on. Every method is one atomic act under the lock."""

    completed: int = 0
    #: True between the first change after a boundary and the end of the next boundary.
    dirty: bool = False
    #: Training is parked at the end of `guard.step()`: this step is done, and the next has not begun.
    at_boundary: bool = False
    shut: Shut = Shut.OPEN
    #: Completed steps at which the shut gate holds. None: it holds training wherever it meets training first.
    target: int | None = None
    #: The step is complete, and the training thread makes its last copies. `rest` comes next.
    resting: bool = False
    #: This rank is one of several. No rank stops where it is clean, because a peer that is a little further on waits for it in a
    #: collective of the next step. All ranks go on to their next change; every collective of that step is over there.
    together: bool = False
    #: Completed steps at whose boundary this rank is held while other ranks go on. They wait for it in a collective of the
    #: next step. If this rank is told to leave there, it goes on to its next change first, like the others.
    awaited: int | None = None
    #: The threads that are inside `optimizer.step()`, each with the frame that runs it.
    changing: dict[int, FrameType | None] = field(default_factory=dict)
    #: The thread that is between the begin and the end of a boundary. None: no thread is.
    bounding: int | None = None
    #: The last boundary to begin found the state clean.
    found_clean: bool = False
    #: The thread that is parked at its boundary, or is about to leave it. Steps of other threads begin after it.
    held: int | None = None

    def may_change(self, thread: int = 0, frame: FrameType | None = None) -> bool:
        """Return whether the optimizer may step in this thread. True: the state is dirty from now on. False: park and ask again.

        No step changes the state at another thread's boundary, neither while that thread makes copies nor while it is held.
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
        """Return whether `guard.step()` may begin to copy the small things. False: park and ask again.

        If the saver wants a clean state as it stands (a GradScaler's skipped step), the copies of that state must not change.
        Another thread's step must end first.
        """
        self.changing.pop(thread, None)  # a step of this thread has ended, perhaps in an exception
        clean = not self.dirty
        if self.changing or not self._may_be_dirty():
            return False
        self.bounding, self.found_clean = thread, clean
        return True

    def may_copy_again(self, thread: int = 0) -> bool:
        """Return whether the thread may copy its present boundary again. No step is available meanwhile; then the same step is.

        If this rank offered the next step, all ranks would wait for that step, this rank included.
        """
        if not self.may_begin_boundary(thread):
            return False
        self.resting = True
        return True

    def abort_boundary(self, *, unchanged: bool) -> None:
        """Abort the boundary that has begun. If nothing was changed, a state that was clean is clean again."""
        if unchanged and self.found_clean and self.bounding is not None:
            self.dirty = self.resting = False
        self.bounding = None

    def end_change(self, thread: int, frame: FrameType | None) -> None:
        """Note that a step has ended in this thread. The end of a step inside another (a wrapper's) changes nothing."""
        if self.changing.get(thread) in (None, frame):
            self.changing.pop(thread, None)

    def _may_be_dirty(self) -> bool:
        if self.at_boundary and not self._may_go_on():
            return False  # Ctrl-C called the parked thread away, but the saver still reads that boundary
        if self.dirty or self.shut is not Shut.BEFORE_CHANGE or self._behind():
            self.dirty, self.resting, self.at_boundary = True, False, False
            return True
        return False

    def complete(self) -> bool:
        """Count one more completed step. True: the saver does not want it, go on. False: `rest` here."""
        self.completed += 1
        if self._may_go_on():
            self.dirty = False
            self.bounding = None
            return True
        self.resting = True
        return False

    def rest(self, thread: int = 0) -> None:
        """Note that all copies are made, and that the training thread parks at its boundary."""
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
        """Return whether a training thread that is told to leave may leave where it is parked."""
        return not (self.at_boundary and self.awaited == self.completed)

    def steady(self) -> bool:
        """Return whether the state stands still now, and will until the gate opens."""
        if self._behind():
            return False
        if self.shut is Shut.BEFORE_CHANGE:
            return not self.dirty
        return self.shut is Shut.AT_BOUNDARY and self.at_boundary

    def earliest(self) -> int:
        """Return the fewest completed steps at which the gate, shut as it is, can hold training."""
        at_rest = self.at_boundary or self.resting
        if self.shut is Shut.AT_BOUNDARY:
            return self.completed if at_rest else self.completed + 1
        return self.completed + 1 if self.dirty and not self.resting else self.completed

    def _may_go_on(self) -> bool:
        """Return whether training may go on from a boundary to the point before the next change."""
        return self.shut is Shut.OPEN or self._behind() or (self.together and self.shut is Shut.BEFORE_CHANGE)

    def _behind(self) -> bool:
        return self.target is not None and self.completed < self.target
