"""SIGTERM is held while a save is under way, and for a moment before: whoever sends it (a launcher that lost its
peers, a service manager that ends a whole group) must not end a save that is about to begin or to commit. The
previous handler is chained, never replaced.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from enum import Enum
from typing import Any

from . import sigterm

#: A group-wide SIGTERM reaches training and agent at once, and the agent's notice comes a moment later.
_MOMENT = 1.0


class SigtermHold(Enum):
    """What a SIGTERM meets."""

    #: Nothing of ours: it goes where it would have gone.
    NOTHING = "nothing"
    #: An agent that may be about to say that this is a notice.
    GUARDED = "guarded"
    #: An emergency save: it waits until training would go on.
    SAVING = "saving"
    #: The save is over and training is to leave: as with NOTHING, but what was held before stays held.
    LEAVING = "leaving"


_previous: Any = None
_look: Callable[[], SigtermHold]
_unnoticed: Callable[[], bool]
_installed = False
_held = False
_through = False
#: Waits for what explains the one that is held.
_timer: threading.Timer | None = None


def hold_sigterm(look: Callable[[], SigtermHold], unnoticed: Callable[[], bool] = lambda: False) -> None:
    """Hold SIGTERM as `look()` says. Off the main thread, where handlers cannot be set, nothing happens.

    Args:
        unnoticed: asked of one that no notice has explained: whether it is to be held on, for a save that begins now.
    """
    global _previous, _look, _unnoticed, _installed
    if threading.current_thread() is not threading.main_thread():
        return
    _look, _unnoticed = look, unnoticed
    if not _installed:
        _previous = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, _on_sigterm)
        _installed = True


def _on_sigterm(signum: int, frame: Any) -> None:
    global _through
    try:
        holds = _holds()
    except Exception:
        # Another signal's handler has raised inside ours: torch's, of a data loader whose worker got this SIGTERM too.
        # Training ends by it, and what is held decides whether it saves first (seen: a rank that left without a word).
        _holds()
        raise
    _through = False
    if holds:
        return
    if callable(_previous):
        _previous(signum, frame)
    elif _previous is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def _holds() -> bool:
    """Hold it, where that is what it meets. Once more does no harm."""
    global _held, _timer
    hold = SigtermHold.NOTHING if _through else _look()
    if hold not in (SigtermHold.GUARDED, SigtermHold.SAVING):
        return False
    if hold is SigtermHold.GUARDED and not _held:
        _timer = threading.Timer(_MOMENT, _unless_noticed)
        _timer.name, _timer.daemon = "spotguard-sigterm", True
        _timer.start()
    _held = True
    return True


def _unless_noticed() -> None:
    if _look() not in (SigtermHold.SAVING, SigtermHold.LEAVING) and not _unnoticed():
        redeliver()


def held() -> bool:
    """Whether a SIGTERM waits for what explains it."""
    return _held


def wait_explained() -> None:
    """Wait for a notice that explains it, or for what begins without one. It may be delivered meanwhile."""
    if _timer is not None:
        _timer.join(2 * _MOMENT)


def redeliver() -> None:
    """Training would go on: a SIGTERM that was held counts now."""
    global _held, _through
    if _held:
        _held, _through = False, True
        os.kill(os.getpid(), signal.SIGTERM)


def let_go() -> None:
    """Put the previous handler back (in a forked child: data loaders end their workers by SIGTERM)."""
    global _installed, _held
    if _installed and signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, _previous if _previous is not None else signal.SIG_DFL)
    _installed = _held = False


# A forked child (a data loader's worker) is not the process that is guarded: it drops everything at once.

_forget: list[Callable[[], None]] = []


def in_child(forget: Callable[[], None]) -> None:
    """Have `forget` called in every child that this process forks from now on."""
    if not _forget:
        os.register_at_fork(after_in_child=_after_fork)
    _forget.append(forget)


def _after_fork() -> None:
    for forget in _forget:
        forget()
    _forget.clear()
    try:
        sigterm.let_go()
    except ValueError:  # forked off the main thread: handlers cannot be set there, and need not be
        signal.getsignal(signal.SIGTERM)


# How training ends after a notice.

#: `EX_TEMPFAIL` of sysexits.h: "temporary failure, run me again". What `spotguard run` exits with.
EX_TEMPFAIL = 75


class Preempted(SystemExit):
    """Raised in the training thread once its state is committed: from `guard.step()`, or from the registered
    optimizer's `step()` if the thread was parked there. Let it pass: it is a `SystemExit` with code 75, so
    `finally` blocks and exit handlers run, and whoever stands over the process runs it again.
    """

    def __init__(self, code: int = EX_TEMPFAIL) -> None:
        super().__init__(code)
