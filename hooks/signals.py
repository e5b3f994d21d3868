"""SIGTERM is held while a save is under way: whoever sends it (a launcher that lost its peers, a group-wide
kill) must not end a save that is about to commit. The previous handler is chained, never replaced.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

_previous: Any = None
_saving: Callable[[], bool] = bool
_installed = False
_held = False


def hold_sigterm(saving: Callable[[], bool]) -> None:
    """Hold SIGTERM whenever `saving()`. Off the main thread, where handlers cannot be set, nothing happens."""
    global _previous, _saving, _installed
    if threading.current_thread() is not threading.main_thread():
        return
    _saving = saving
    if not _installed:
        _previous = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, _on_sigterm)
        _installed = True


def _on_sigterm(signum: int, frame: Any) -> None:
    global _held
    if _saving():
        _held = True
    elif callable(_previous):
        _previous(signum, frame)
    elif _previous is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def redeliver() -> None:
    """The save is over and training would go on: a SIGTERM that was held meanwhile counts now."""
    global _held
    if _held:
        _held = False
        os.kill(os.getpid(), signal.SIGTERM)


def let_go() -> None:
    """Put the previous handler back (in a forked child: data loaders end their workers by SIGTERM)."""
    global _installed, _held
    if _installed and signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, _previous if _previous is not None else signal.SIG_DFL)
    _installed = _held = False
