"""The place in the script from which it calls its guard: the thread, a signal's handler, the turn, a loop over `steps`."""

from __future__ import annotations

import dis
import functools
import inspect
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from ...providers.errors import StateError, UsageError
from ..control.gate import Gate
from ..state.misuse.loop_order import CallPath, call_path
from .parts import GuardParts

log = logging.getLogger("spotguard")

#: The places beside training in which a call of `save` may come, as messages name them.
IN_ANOTHER_THREAD, IN_A_HANDLER = "in another thread than guard.step()", "in a signal's handler"
#: The modules whose code may hold the gate's lock.
_HOLDING = (Gate.__module__, f"{__package__}.guard")
_HOOKS = os.path.dirname(os.path.dirname(__file__))


class CallPlace:
    """The place of the training thread, as the guard's calls ask for it.

    Args:
        parts: the parts of the guard.
    """

    def __init__(self, parts: GuardParts) -> None:
        self._gate, self._state, self._together = parts.gate, parts.state, parts.channel is not None
        #: Whether the script has restored.
        self.restored = False
        #: The last loop over `steps`.
        self.loop = StepsLoop()
        #: The values that the log has named as missing from a save by hand.
        self._left_out: set[str] = set()
        self.here()

    def here(self) -> None:
        """Note the thread of a boundary; not its number, which a later thread may have again."""
        self._trainer = threading.current_thread()

    def begin(self) -> None:
        """Note that training begins behind a restore."""
        self.loop = StepsLoop()
        self.here()

    @property
    def trained(self) -> bool:
        """Whether the script has trained since it restored, or has begun to."""
        return self.restored and (self._state.trained or bool(self._begun()))

    def _begun(self) -> str:
        """Return why the turn behind the last boundary has begun; "" if it has not."""
        return "an optimizer has stepped" if self._gate.place.dirty else self._state.begun()

    def step(self) -> None:
        """Note the thread of a boundary. Raise `StateError` if a restore has left a mix of states; `UsageError` if there was none."""
        if self._state.poisoned:
            raise StateError(f"{self._state.poisoned}; call guard.restore() again, or restart the process")
        if not self.restored:
            self.check_restored("step")
        self._trainer = threading.current_thread()

    def check_restored(self, method: str) -> None:
        """Raise `UsageError` if the script has not restored."""
        if not self.restored:
            raise UsageError(
                f"guard.{method}() was called before guard.restore(): call done = guard.restore() once, before the loop [SG405]"
            )

    def check_loop(self) -> None:
        """Raise `UsageError` if a loop over `steps` would begin in the middle of a turn.

        What a script tries out between `restore` and its first turn belongs to no turn: it may look at a batch, warm up, or find a
        learning rate and put the weights back.
        """
        if (self.loop.turn >= 0 or self._state.trained) and (begun := self._begun()):
            raise UsageError(
                f"guard.steps() was called in the middle of the turn behind step {self._gate.place.completed}, because {begun}: call "
                "guard.step() before break where a loop leaves behind a step's work, or guard.restore() to go back [SG405]"
            )

    def check_save(self, loop_owned: bool) -> tuple[str, bool]:
        """Check that a save by hand can be made here.

        Args:
            loop_owned: whether a framework runs the loop.

        Returns:
            The place beside training, as `beside_training` does; and whether the save is of the last boundary's own copies.

        Raises:
            UsageError: what is there now is no whole step, and there is no copy of the last one.
        """
        completed = self._gate.place.completed
        if self._gate.place.dirty:
            raise UsageError(
                "guard.save() was called in the middle of a step: call it right after guard.step(), or "
                "first in the body of a loop over guard.steps() [SG405]"
            )
        # Without a torch optimizer, the gate saw no step. A start that was restored behind step 0 has called `guard.step()` before: it may
        # have loaded its best weights behind the loop.
        if not completed and self._state.monitor.trained_unseen:
            raise UsageError(
                f"guard.save() would save trained weights as step {completed}, because guard.step() was not "
                "called since guard.restore(): call guard.step() after each step of the training [SG405]"
            )
        beside = beside_training(self._trainer)
        if not beside and loop_owned:
            # Between two boundaries of a framework's loop only the copies of the last one are exact. There are none if saves wait
            # for the boundary.
            return beside, not self._state.boundary_only
        where = beside or ((begun := self._begun()) and f"in the middle of a turn, because {begun}")
        if where:
            self._keep_to_boundary(where)
        return beside, bool(where)

    def _keep_to_boundary(self, where: str) -> None:
        """Name the values that a save of the last boundary leaves out.

        Args:
            where: the place of the call.

        Raises:
            UsageError: there is no copy of that boundary.
        """
        beside, completed = where in (IN_ANOTHER_THREAD, IN_A_HANDLER), self._gate.place.completed
        why = self._state.boundary_only or ("" if where == IN_ANOTHER_THREAD else self._state.inconsistency())
        if self._together and beside:
            why = "ranks save one step together"
        if why:
            raise UsageError(
                f"guard.save() was called {where}, where step {completed} cannot be saved ({why}): call it right after guard.step(), "
                "in the thread that calls that [SG405]"
            )
        moved = self._state.turn.moved(ask=not beside)
        if moved.keys() - self._left_out:
            self._left_out |= moved.keys()
            log.warning(
                "guard.save() was called %s, so it saves step %d as of its guard.step(), without what has changed since: %s; to "
                "save that too, call it right after guard.step() [SG405]",
                where,
                completed,
                ", ".join(moved.values()),
            )


def beside_training(trainer: threading.Thread) -> str:
    """Return the place beside training in which the script calls `save`; "" on the training thread.

    Args:
        trainer: the thread of the last boundary. Once it has ended, any other takes its place.

    Raises:
        UsageError: a call of the guard on this thread waits for this one, as a signal's handler can interrupt it.
    """
    if trainer is not threading.current_thread() and trainer.is_alive():
        return IN_ANOTHER_THREAD
    caller = sys._getframe(3)
    if any(each.f_globals.get("__name__") in _HOLDING for each in _stack(caller)):
        raise UsageError(
            "guard.save() was called inside another call of the guard, as by a signal's handler: set a flag there, and call "
            "guard.save() after guard.step() [SG405]"
        )
    codes = {_code(signal.getsignal(each)) for each in signal.valid_signals()}
    return IN_A_HANDLER if any(_handles(each) for each in _stack(caller) if each.f_code in codes) else ""


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _code(handler: Any) -> CodeType | None:
    """Return the code that runs when a signal's handler is called."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if callable(handler) and not hasattr(handler, "__code__"):
        handler = handler.__call__
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _handles(frame: FrameType) -> bool:
    """Return whether Python has called a handler for a signal: it passes the frame that the signal has interrupted.

    Only a handler's own frame may be asked. `f_locals` keeps what a function's variables refer to until that function ends.
    """
    code = frame.f_code
    count = code.co_argcount + bool(code.co_flags & inspect.CO_VARARGS)
    passed = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
    return any(each is frame.f_back or (type(each) is tuple and frame.f_back in each) for each in passed)


class StepsLoop:
    """A loop over `steps`. The script may mark a turn itself by `guard.step()` if it leaves the loop then.

    Nothing tells that a loop was left while a variable still holds its iterator. So a call is inside the loop if its place is in the
    loop's body.

    Args:
        taker: the frame that takes the steps; None: the script is in no such loop.
    """

    def __init__(self, taker: FrameType | None = None) -> None:
        self._path = call_path(taker)
        #: Completed steps with which a `guard.step()` may be a call inside the loop; -1 outside the loop's body.
        self.step = -1
        #: The step of the turn; -1 before the first.
        self.turn = -1
        self._line = ""
        #: Whether it has come to its end.
        self.over = taker is None

    def begin_turn(self, step: int) -> None:
        self.step = self.turn = step

    def marked_by_hand(self) -> None:
        """Note a `guard.step()` that may be inside the loop.

        Raises:
            UsageError: it is the second one of this turn.
        """
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename.startswith(_HOOKS):
            frame = frame.f_back
        if not _in_body(self._path, path := call_path(frame)):
            return
        if self._line:
            raise self._counts_twice()
        self.step += 1
        self._line = path[-1].place

    def go_on(self, completed: int) -> None:
        """Leave the loop's body, in order to mark its turn.

        Args:
            completed: the steps that are completed.

        Raises:
            UsageError: the turn is marked already, or training is at another step.
        """
        self.step = -1
        if self._line:
            raise self._counts_twice()
        if completed != self.turn:
            raise UsageError(
                f"the loop over guard.steps() is in the turn behind step {self.turn}, and training is at step {completed}, because "
                "guard.step(), guard.restore() or another such loop ran inside it: begin a new loop over guard.steps() after that "
                "[SG405]"
            )

    def _counts_twice(self) -> UsageError:
        return UsageError(
            f"guard.step() ({self._line}) was called inside a loop over guard.steps(), which marks each turn itself, so the turn "
            "would count twice: leave that call out, except right before break [SG405]"
        )


def _in_body(taker: CallPath, call: CallPath) -> bool:
    """Return whether a call is in the body of the `for` that takes the steps, or in what that calls."""
    for one, other in zip(taker, call, strict=False):
        if one != other:
            *_, taking = (each for each in dis.get_instructions(one.code) if each.offset <= one.offset)
            body = range(one.offset, taking.argval if taking.opname == "FOR_ITER" else 0)
            return one.code is other.code and other.offset in body
    return len(taker) < len(call)  # a function of C takes the steps, such as `map`, and has called the script
