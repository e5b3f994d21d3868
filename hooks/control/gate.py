"""The gate: where training may be stopped so that its state stands still.

Parameters and optimizer state change only between the first `optimizer.step()` after a boundary and the next
boundary (`guard.step()`). So two places are enough to hold them still:

    boundary k ──── clean: forward, backward, evaluation, loading … ──── enter ──── dirty ──── boundary k+1

While the gate is shut a *clean* state stays as it is, whatever the training thread does, until that thread
comes to `enter` (the optimizer's pre-hook) and is parked there. A *dirty* one cannot be had: it is let through
to its next boundary and parked there, and that boundary's state is taken.

Where several ranks agree on one step, it is the gate's *target*: whoever is behind it passes until it is there.

`GateRule` is the rule, pure; `Gate` puts a lock and a condition around it. Closing and reading the position are
one atomic act: between two acts training could pass (both simpler orders lose a step or tear one).
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

#: Seconds between two looks at whether another thread's `optimizer.step()` has ended in an exception: its post-hook is not
#: called then.
_ENDED_EVERY = 0.1


class Gate:
    """`GateRule` between two threads: the one that trains and the one that saves."""

    def __init__(self, *, together: bool = False) -> None:
        #: The condition's own lock: the training thread takes it directly, three times a step, at half the price.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self.place = GateRule(together=together)
        self._leave: Callable[[], BaseException] | None = None
        #: How many threads are parked: those that step beside the one that trains are woken by what that one does.
        self._parked = 0
        self._warned = False
        #: Set when the guard is closed, and in a forked child, where the lock may be held for ever.
        self.inert = False

    # --- the training thread ---

    def before_change(self, frame: FrameType | None = None) -> None:
        """Called before `optimizer.step()` changes anything; parks while the gate is shut.

        Args:
            frame: the one that runs the step. While it runs, no other thread begins a boundary.
        """
        self._pass(lambda thread: self.place.may_change(thread, frame))

    def after_change(self, frame: FrameType | None = None) -> None:
        """The step is over. Not called where it raised."""
        if self.inert:
            return
        with self._lock:
            self.place.end_change(get_ident(), frame)
            if self._parked:
                self._changed.notify_all()

    def begin_boundary(self) -> None:
        self._pass(self.place.may_begin_boundary)

    def abort_boundary(self, *, unchanged: bool = False) -> None:
        """What began a boundary has raised: other threads may step. `unchanged`: it left the state as it was."""
        with self._lock:
            self.place.abort_boundary(unchanged=unchanged)
            self._changed.notify_all()

    def begin_again(self) -> None:
        """As `begin_boundary`, for a save by hand: no step is completed by what follows. Then `arrive`."""
        self._pass(self.place.may_copy_again)

    def end_boundary(self, late_copies: Callable[[], None] | None = None) -> None:
        """`guard.step()` is done. `late_copies` are those that are made only when somebody wants them."""
        if self.inert:
            return
        with self._lock:
            if self.place.complete():
                if self.place.shut is not Shut.OPEN or self._parked:
                    self._changed.notify_all()  # clean, which is enough for who saves
                return
        if late_copies is not None:
            late_copies()  # still dirty: nobody reads yet
        with self._changed:
            self.place.rest(get_ident())
            self._changed.notify_all()
            self._park(self._may_leave)

    def pass_boundary(self, copies: Callable[[], None], *, late: bool) -> None:
        """`guard.step()`, from its begin to its end. Where the copies raise, other threads may step all the same.

        Args:
            copies: makes those of what changes between steps.
            late: they are made only when somebody wants them.
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
        """A boundary that is there already, with new copies, for a save by hand. As `arrive`."""
        self.begin_again()
        try:
            copies()
        except BaseException:
            self.abort_boundary()
            raise
        self.arrive()

    def stand(self) -> None:
        """Park while the gate is shut in any way; nothing changes. For a thread that has not begun yet, or has
        arrived at a boundary."""
        self._pass(self._may_leave)

    def _may_leave(self, thread: int) -> bool:
        may = self.place.may_leave_boundary(thread)
        if may and self._parked:
            self._changed.notify_all()  # other threads' steps that wait for it
        return may

    def arrive(self, steps: int | None = None) -> None:
        """Training is at a boundary without a step before it: restored, or saving by hand. It may be had there
        until `stand` lets it leave. After `begin_boundary` and its copies, like `end_boundary`."""
        if self.inert:
            return
        with self._lock:
            if steps is not None:
                self.place.completed = steps
            self.place.rest(get_ident())
            self._changed.notify_all()

    def look(self) -> None:
        """Raise where the training thread was told to leave. For one that waits somewhere else."""
        if self._leave is not None and not self.inert:
            raise self._leave()

    def _pass(self, may: Callable[[int], bool]) -> None:
        if self.inert:
            return
        with self._lock:
            # Whatever is wanted since: the others leave before their next change, too.
            if self._leave is not None and not self.place.dirty and self.place.may_end_here():
                raise self._leave()
            if not may(get_ident()):
                self._park(may)

    def _park(self, may: Callable[[int], bool]) -> None:
        """Wait until told to go on or to leave. A signal (Ctrl-C) still reaches its handler: a condition's
        wait is interruptible."""
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
            if self.place.held == thread:  # called away: Ctrl-C, or told to leave
                self.place.held = None
                self._changed.notify_all()

    def _until_ended(self, thread: int) -> float | None:
        """Forget the steps of other threads that have ended in an exception. Seconds to the next look; None: none is in
        progress."""
        others = {at: frame for at, frame in self.place.changing.items() if at != thread}
        if not others:
            return None
        if not self._warned:
            self._warned = True
            names = {each.ident: each.name for each in threading.enumerate()}
            log.warning(
                "guard.step() waits for the optimizer.step() of another thread (%s) to end: a boundary lies between "
                "steps; call guard.step() in the thread that steps",
                ", ".join(names.get(at, "one that has ended") for at in others),
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
        """Shut the gate and read where training stands, as one act. Returns a copy.

        Args:
            target: completed steps that were agreed on: who has fewer passes until it has so many, and is held there.
            awaited: other ranks are not held there, and wait for this one in a collective of the next step.
        """
        with self._changed:
            self.place.close(how, target, awaited=awaited)
            self._changed.notify_all()  # a thread that is parked short of where it is wanted is let through
            return replace(self.place)

    def wait_steady(
        self, left: Callable[[], float | None] = lambda: None, give_up: Callable[[], bool] = lambda: False
    ) -> int | None:
        """Wait until the state stands still; its completed steps, or None when no seconds are `left()` or `give_up()`.
        Both are asked again at each `wake`."""
        with self._changed:
            while not self.place.steady():
                if (seconds := left()) == 0 or give_up():
                    return None
                self._changed.wait(seconds)
            return self.place.completed

    def wake(self) -> None:
        """Have `wait_steady` ask again whether it goes on, and how long."""
        with self._changed:
            self._changed.notify_all()

    def open(self) -> None:
        """Let training go on; who was told to leave leaves all the same."""
        with self._changed:
            if self._leave is None:
                self.place.close(Shut.OPEN)
                self._changed.notify_all()

    def retire(self) -> None:
        """Nobody saves any more: whoever is parked goes on, and nobody parks again."""
        with self._changed:
            self.inert = True
            self._changed.notify_all()

    def leave(self, ending: Callable[[], BaseException]) -> None:
        """The training thread raises `ending()` where it is parked, or when it comes to the gate."""
        with self._changed:
            self._leave = ending
            self.place.close(Shut.BEFORE_CHANGE)
            self._changed.notify_all()


def _runs(frame: FrameType, top: FrameType | None) -> bool:
    """Whether a frame is on the stack that ends at `top`."""
    while top is not None:
        if top is frame:
            return True
        top = top.f_back
    return False
