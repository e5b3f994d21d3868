"""The signal handler of a guarded process, the fork hook that drops it, and the exception `Preempted`.

The handler holds SIGTERM while a save is under way, and for a moment before. A sender (a launcher that lost its peers, a
service manager that ends a whole group) must not end a save that is about to begin or to commit. The handler chains the
previous one, and never replaces it.

Under `spotguard run` it holds Ctrl-C (SIGINT) and a terminal's hang-up (SIGHUP) too, if the script does not handle them. A
terminal sends them to the command and not to the agent, so the agent is told. Its notice follows.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from enum import Enum
from functools import partial
from types import FrameType
from typing import Any
from weakref import WeakMethod

from ...ipc import interpreter_lock
from ...ipc.threads import StandingThread, TaskHandle

#: Seconds to wait for a notice that explains a SIGTERM. A group-wide SIGTERM reaches training and agent at once, and the
#: agent's notice comes a moment later.
_MOMENT = 1.0
#: SIGINTs within this many seconds are one Ctrl-C: a sender may signal `run` and training, and `run` passes it on.
_ONE_PRESS = 0.1


class SigtermHold(Enum):
    """The state of the process in which a signal arrives."""

    #: No agent and no save: the signal goes to the previous handler.
    NOTHING = "nothing"
    #: An agent is connected, and may be about to deliver a notice that explains the signal.
    GUARDED = "guarded"
    #: An emergency save is under way: the signal waits until training would go on.
    SAVING = "saving"
    #: The save is over and training is to leave. As with NOTHING, but another signal that was held before stays held.
    LEAVING = "leaving"


#: The handlers before this module's, by signal.
_previous: dict[int, Any] = {}
#: Weak, so that a closed guard's state can be freed: a sweep makes a guard for every trial, in one process.
_look: WeakMethod[Callable[[int], SigtermHold]]
_unnoticed: WeakMethod[Callable[[], bool]] | None = None
_tell: WeakMethod[Callable[[int], None]] | None = None
#: The signal that is held; 0 for none.
_held = 0
_through = False
#: Monotonic seconds until which a SIGINT is the one that is held.
_pressed_until = 0.0
#: The process that started this one. `torch.multiprocessing.spawn` has its end announced by SIGINT.
_parent = 0
#: Modules whose frames stand below a prompt: a debugger's, or a console's in the script.
_PROMPTS = frozenset({"cmd", "code", "IPython"})
#: Waits for the notice that explains a held signal. It is made before any signal: at exit no thread may start.
_thread: StandingThread | None = None
#: The wait for the notice that explains the signal that was held last.
_explained: TaskHandle | None = None


def hold_sigterm(
    look: Callable[[int], SigtermHold],
    unnoticed: Callable[[], bool] | None = None,
    tell: Callable[[int], None] | None = None,
) -> None:
    """Install the handler, which holds a signal as `look` decides. Off the main thread, do nothing: handlers cannot be set.

    Args:
        look: a method that returns the state of the process for this signal. The handler holds nothing when its object is gone.
        unnoticed: a method that is called for a SIGTERM that no notice has explained. Returns whether the handler holds it
            longer, for a save that begins now.
        tell: a method that tells the agent of `run` about a SIGINT or SIGHUP. Its notice follows. None: these signals are not held.
    """
    global _look, _unnoticed, _tell, _thread, _parent
    if threading.current_thread() is not threading.main_thread():
        return
    _look, _unnoticed = WeakMethod(look), None if unnoticed is None else WeakMethod(unnoticed)
    _tell = None if tell is None else WeakMethod(tell)
    if _thread is None or not _thread.alive:  # a forked child inherits one that does not run
        _thread = StandingThread("spotguard-sigterm")
    chosen, _parent = [signal.SIGTERM], os.getppid()
    if tell is not None and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        chosen.append(signal.SIGHUP)
    if tell is not None and signal.getsignal(signal.SIGINT) == signal.default_int_handler and not at_prompt():
        chosen.append(signal.SIGINT)
    for signum in chosen:
        if signum not in _previous:
            _previous[signum] = signal.signal(signum, _on_signal)


def at_prompt() -> bool:
    """Return whether a person types this program's lines, or will at its end (`python -i`)."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def _on_signal(signum: int, frame: FrameType | None) -> None:
    global _through
    try:
        holds = _holds(signum, frame)
    except Exception:
        # Another signal's handler has raised inside this one: torch's, of a data loader whose worker got this SIGTERM too.
        # The exception ends training, and a held SIGTERM decides whether training saves first (seen: a rank that left
        # without a message).
        if not _held:
            _holds(signum, frame)
        raise
    _through = False
    if holds:
        return
    previous = _previous.get(signum)
    if callable(previous):
        interpreter_lock.answer_first()  # the message that lets a signal through has come with one of its own
        previous(signum, frame)
    elif previous is not signal.SIG_IGN:
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)


def _holds(signum: int, frame: FrameType | None) -> bool:
    """Hold the signal if the state of the process asks for that; return whether it is held."""
    global _held, _explained, _pressed_until
    hold = SigtermHold.NOTHING if _through else _state(signum)
    if hold not in (SigtermHold.GUARDED, SigtermHold.SAVING):
        _held = 0 if _held == signum else _held  # it goes on now, and must not come once more
        return False
    if signum == _held == signal.SIGINT and time.monotonic() < _pressed_until:
        return True
    if signum == signal.SIGINT and (_held or hold is SigtermHold.SAVING or not _is_ctrl_c(frame)):
        _held = 0 if _held == signum else _held  # pressed twice: nothing is held any more
        return False
    if hold is SigtermHold.GUARDED and not _held and _thread is not None:
        _explained = _thread.give(partial(_wait_for_notice, signum))
    _held, _pressed_until = signum, time.monotonic() + _ONE_PRESS
    return True


def _is_ctrl_c(frame: FrameType | None) -> bool:
    """Return whether a SIGINT means training: not the end of the parent process, and not a line at a prompt."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in _PROMPTS:
            return False
        frame = frame.f_back
    return os.getppid() == _parent


def _state(signum: int) -> SigtermHold:
    look = _look()
    return SigtermHold.NOTHING if look is None else look(signum)


def _wait_for_notice(signum: int) -> None:
    """Redeliver the held signal unless a notice explains it within a moment."""
    if signum != signal.SIGTERM and _tell is not None and (tell := _tell()) is not None:
        tell(signum)
    time.sleep(_MOMENT)
    unnoticed = None if _unnoticed is None else _unnoticed()
    if _state(signum) not in (SigtermHold.SAVING, SigtermHold.LEAVING) and not (unnoticed and unnoticed()):
        redeliver()


@contextmanager
def alone() -> Iterator[None]:
    """Have this module's handler get SIGTERM alone, although another library has put its own in front of it.

    That one may raise in the middle of what is done for an error: Lightning's broadcasts the SIGTERM to the other ranks, one of
    which is dead.
    """
    with handled_by(signal.SIGTERM, _on_signal) if _previous else nullcontext():
        yield


@contextmanager
def handled_by(signum: int, handler: Any) -> Iterator[None]:
    """Have a signal handled by this handler meanwhile. Off the main thread, do nothing: handlers cannot be set."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signum, handler)
    try:
        yield
    finally:
        signal.signal(signum, signal.SIG_DFL if before is None else before)


def held() -> bool:
    """Return whether a signal is held."""
    return bool(_held)


def wait_explained() -> None:
    """Wait for a notice that explains the signal, or for a save that begins without one.

    The signal may be delivered again meanwhile.
    """
    if _explained is not None:
        _explained.done.wait(2 * _MOMENT)


def redeliver() -> None:
    """Send this process the signal that was held, since training would go on now."""
    global _held, _through
    if signum := _held:
        _held, _through = 0, True
        os.kill(os.getpid(), signum)


def leaving(code: int) -> Callable[[], BaseException]:
    """Return the maker of the exception that ends the training thread.

    A main thread that does not come to the gate within a moment gets a held Ctrl-C: it asks a person, or is behind the last step.
    """
    if _held == signal.SIGINT and _thread is not None:
        _thread.give(_interrupt)
    return partial(_preempted, code)


def _preempted(code: int) -> BaseException:
    drop_ctrl_c()
    return Preempted(code)


def _interrupt() -> None:
    time.sleep(_MOMENT)
    if _held == signal.SIGINT:
        redeliver()


def drop_ctrl_c() -> None:
    """Forget a held Ctrl-C: training ends as it asks."""
    global _held
    _held = 0 if _held == signal.SIGINT else _held


def let_go() -> None:
    """Restore the previous handlers, in a forked child: data loaders end their workers by SIGTERM."""
    global _held, _explained
    for signum, previous in _previous.items():
        if signal.getsignal(signum) is _on_signal:
            signal.signal(signum, previous if previous is not None else signal.SIG_DFL)
    _previous.clear()
    _held, _explained = 0, None


# --- forked children (a data loader's workers), which are not guarded and drop everything at once ---

#: Weak, as the methods above are.
_forget: list[WeakMethod[Callable[[], None]]] = []
_at_fork = False


def in_child(forget: Callable[[], None]) -> None:
    """Have the method `forget` called in every child that this process forks from now on, while its object lives."""
    global _at_fork
    if not _at_fork:
        os.register_at_fork(after_in_child=_after_fork)
        _at_fork = True
    _forget[:] = [known for known in _forget if known() is not None]
    _forget.append(WeakMethod(forget))


def _after_fork() -> None:
    for known in _forget:
        if (forget := known()) is not None:
            forget()
    _forget.clear()
    try:
        let_go()
    except ValueError:  # forked off the main thread: handlers cannot be set there, and need not be
        signal.getsignal(signal.SIGTERM)


# --- the end of training after a notice ---

#: `EX_TEMPFAIL` of sysexits.h: "temporary failure, run me again". `spotguard run` exits with it.
EX_TEMPFAIL = 75


class Preempted(SystemExit):
    """The exception that ends the training thread once its state is committed. Do not catch it.

    `guard.step()` raises it, or the registered optimizer's `step()` if the thread was parked there. It is a `SystemExit` with
    code 75. So `finally` blocks and exit handlers run, and the supervisor of the process runs it again.

    Args:
        code: the exit code of the process.

    Example:
        >>> Preempted().code
        75
    """

    def __init__(self, code: int = EX_TEMPFAIL) -> None:
        super().__init__(code)
