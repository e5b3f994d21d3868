"""Where the script calls its guard: in which thread, in a signal's handler, or in a loop over `steps`."""

from __future__ import annotations

import dis
import functools
import inspect
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

from ...providers.errors import UsageError
from ..control.gate import Gate
from ..state.misuse.loop_order import CallPath, call_path

#: The places beside training in which a call of `save` may come, as messages name them.
IN_ANOTHER_THREAD, IN_A_HANDLER = "in another thread than guard.step()", "in a signal's handler"
#: The modules whose code may hold the gate's lock.
_HOLDING = (Gate.__module__, f"{__package__}.guard")
_HOOKS = os.path.dirname(os.path.dirname(__file__))


def beside_training(trainer: threading.Thread) -> str:
    """Return the place beside training in which the script calls `save`; "" on the training thread.

    Args:
        trainer: the thread of the last boundary. Once it has ended, any other takes its place.

    Raises:
        UsageError: a call of the guard on this thread waits for this one, as a signal's handler can interrupt it.
    """
    if trainer is not threading.current_thread() and trainer.is_alive():
        return IN_ANOTHER_THREAD
    caller = sys._getframe(2)
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
