"""The gate, which parks the training thread at a point where its state stands still.

Parameters and optimizer state change only between the first `optimizer.step()` after a boundary and the next
boundary (`guard.step()`). So two points are enough to hold them still:

    boundary k ──── clean: forward, backward, evaluation, loading … ──── enter ──── dirty ──── boundary k+1

While the gate is shut, a *clean* state stays as it is, whatever the training thread does. When that thread comes to `enter`
(the optimizer's pre-hook), the gate parks it there. A *dirty* state cannot be saved. The gate lets the thread through to its
next boundary and parks it there, and the saver reads that boundary's state.

If several ranks agree on one step, that step is the gate's *target*: a thread that is behind the target passes until it is
there.

`GateRule` is the rule, pure; `Gate` adds a lock and a condition. Closing the gate and reading the position are one atomic act.
Training could pass between two acts (both simpler orders lose a step or tear one).
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from threading import get_ident
from types import FrameType

from .gate_rule import GateRule, Shut

log = logging.getLogger("spotguard")

#: Seconds between two checks whether another thread's `optimizer.step()` has ended in an exception: torch does not call its
#: post-hook then.
_ENDED_EVERY = 0.1


class Gate:
    """The gate between two threads: the training thread and the saver thread.

    Args:
        together: this rank is one of several.
    """

    def __init__(self, *, together: bool = False) -> None:
        #: The condition's own lock. The training thread takes it directly, three times a step, at half the cost.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self.place = GateRule(together=together)
        self._leave: Callable[[], BaseException] | None = None
        #: The number of parked threads. The training thread wakes parked threads that step at the same time.
        self._parked = 0
        self._warned = False
        #: Set when the guard is closed, and in a forked child, where the lock may be held for ever.
        self.inert = False

    # --- the training thread ---

    def before_change(self, frame: FrameType | None = None) -> None:
        """Park while the gate is shut. The optimizer's pre-hook calls this before `optimizer.step()` changes anything.

        Args:
            frame: the frame that runs the step. While this frame runs, no other thread begins a boundary.
        """
        self._pass(lambda thread: self.place.may_change(thread, frame))

    def after_change(self, frame: FrameType | None = None) -> None:
        """Note that the step is over. Nothing calls this if the step raised."""
        if self.inert:
            return
        with self._lock:
            self.place.end_change(get_ident(), frame)
            if self._parked:
                self._changed.notify_all()

    def begin_boundary(self) -> None:
        self._pass(self.place.may_begin_boundary)

    def abort_boundary(self, *, unchanged: bool = False) -> None:
        """Abort a boundary whose caller has raised, so that other threads may step.

        Args:
            unchanged: the caller left the state as it was.
        """
        with self._lock:
            self.place.abort_boundary(unchanged=unchanged)
            self._changed.notify_all()

    def begin_again(self) -> None:
        """Begin the present boundary again, for a save by hand. As `begin_boundary`, but completes no step. `arrive` follows."""
        self._pass(self.place.may_copy_again)

    def end_boundary(self, late_copies: Callable[[], None] | None = None) -> None:
        """Complete `guard.step()`; park if a save wants this step.

        Args:
            late_copies: makes the copies that are needed only if a save wants this step.
        """
        if self.inert:
            return
        with self._lock:
            if self.place.complete():
                if self.place.shut is not Shut.OPEN or self._parked:
                    self._changed.notify_all()  # clean, which is enough for the saver
                return
        if late_copies is not None:
            late_copies()  # still dirty: the saver does not read yet
        with self._changed:
            self.place.rest(get_ident())
            self._changed.notify_all()
            self._park(self._may_leave)

    def pass_boundary(self, copies: Callable[[], None], *, late: bool) -> None:
        """Do `guard.step()` from its begin to its end. If the copies raise, other threads may still step.

        Args:
            copies: copies the state that changes between steps.
            late: make the copies only if a save wants this step.
        """
        self.begin_boundary()
        try:
            if not late:
                copies()
            self.end_boundary(copies if late else None)
        except BaseException:
            self.abort_boundary()
            raise

    def take_again(self, copies: Callable[[], None]) -> None:
        """Copy the present boundary again, for a save by hand, and arrive there (see `arrive`)."""
        self.begin_again()
        try:
            copies()
        except BaseException:
            self.abort_boundary()
            raise
        self.arrive()

    def stand(self) -> None:
        """Park while the gate is shut in any way; nothing changes.

        For a thread that has not begun yet, or has arrived at a boundary.
        """
        self._pass(self._may_leave)

    def _may_leave(self, thread: int) -> bool:
        may = self.place.may_leave_boundary(thread)
        if may and self._parked:
            self._changed.notify_all()  # steps of other threads wait for this one
        return may

    def arrive(self, steps: int | None = None) -> None:
        """Note that training is at a boundary without a step before it: it has restored, or saves by hand.

        The saver may read the state there until `stand` lets training leave. Call this after `begin_boundary` and its copies,
        like `end_boundary`.
        """
        if self.inert:
            return
        with self._lock:
            if steps is not None:
                self.place.completed = steps
            self.place.rest(get_ident())
            self._changed.notify_all()

    def look(self) -> None:
        """Raise if the training thread was told to leave. For a thread that waits somewhere else."""
        if self._leave is not None and not self.inert:
            raise self._leave()

    def _pass(self, may: Callable[[int], bool]) -> None:
        if self.inert:
            return
        with self._lock:
            # Leave whatever the gate was shut for since: the other ranks, too, leave before their next change.
            if self._leave is not None and not self.place.dirty and self.place.may_end_here():
                raise self._leave()
            if not may(get_ident()):
                self._park(may)

    def _park(self, may: Callable[[int], bool]) -> None:
        """Wait until the thread may go on or is told to leave.

        A signal (Ctrl-C) still reaches its handler: a condition's wait is interruptible.
        """
        thread = get_ident()
        self._parked += 1
        try:
            while not self.inert:
                if self._leave is not None and self.place.may_end_here():
                    raise self._leave()
                if may(thread):
                    return
                self._changed.wait(self._until_ended(thread))
        finally:
            self._parked -= 1
            if self.place.held == thread:  # the thread goes: Ctrl-C, or it was told to leave
                self.place.held = None
                self._changed.notify_all()

    def _until_ended(self, thread: int) -> float | None:
        """Forget the steps of other threads that have ended in an exception.

        Returns:
            Seconds to the next check; None if no step is in progress.
        """
        others = {at: frame for at, frame in self.place.changing.items() if at != thread}
        if not others:
            return None
        if not self._warned:
            self._warned = True
            names = {each.ident: each.name for each in threading.enumerate()}
            log.warning(
                "guard.step() waits until the optimizer.step() of another thread (%s) ends, because a "
                "boundary is between steps; call guard.step() in the thread that steps [SG410]",
                ", ".join(names.get(at, "a thread that has ended") for at in others),
            )
        running = sys._current_frames()
        for at, frame in others.items():
            if frame is not None and not _runs(frame, running.get(at)):
                self.place.changing.pop(at, None)
                self._changed.notify_all()
        return _ENDED_EVERY

    # --- the saving thread ---

    def close(
        self, how: Shut = Shut.BEFORE_CHANGE, target: int | None = None, *, awaited: bool = False
    ) -> GateRule:
        """Shut the gate and read the position of training, as one act. Return a copy of the rule.

        Args:
            how: how the gate is shut.
            target: completed steps that the ranks agreed on. If training has completed fewer, it passes until it reaches the
                target, and the gate holds it there.
            awaited: other ranks are not held there, and wait for this one in a collective of the next step.
        """
        with self._changed:
            self.place.close(how, target, awaited=awaited)
            self._changed.notify_all()  # lets a thread through that is parked short of the target
            return replace(self.place)

    def wait_steady(
        self, left: Callable[[], float | None] = lambda: None, give_up: Callable[[], bool] = lambda: False
    ) -> int | None:
        """Wait until the state stands still. Each `wake` has both callables asked again.

        Args:
            left: returns the seconds that are left; None: no limit.
            give_up: returns whether to stop waiting.

        Returns:
            The completed steps; None if no time is left, or if `give_up` returned true.
        """
        with self._changed:
            while not self.place.steady():
                if (seconds := left()) == 0 or give_up():
                    return None
                self._changed.wait(seconds)
            return self.place.completed

    def wake(self) -> None:
        """Have `wait_steady` ask again whether to go on waiting, and how long."""
        with self._changed:
            self._changed.notify_all()

    def open(self) -> None:
        """Let training go on. A thread that was told to leave still leaves."""
        with self._changed:
            if self._leave is None:
                self.place.close(Shut.OPEN)
                self._changed.notify_all()

    def retire(self) -> None:
        """Retire the gate, since no save will come: parked threads go on, and no thread parks again."""
        with self._changed:
            self.inert = True
            self._changed.notify_all()

    def leave(self, ending: Callable[[], BaseException]) -> None:
        """Have the training thread raise `ending()` where it is parked, or when it comes to the gate."""
        with self._changed:
            self._leave = ending
            self.place.close(Shut.BEFORE_CHANGE)
            self._changed.notify_all()


def _runs(frame: FrameType, top: FrameType | None) -> bool:
    """Return whether a frame is on the stack that ends at `top`."""
    while top is not None:
        if top is frame:
            return True
        top = top.f_back
    return False
