"""A forked child (a data loader's worker) is not the process that is guarded: it drops everything at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from . import signals

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
        signals.let_go()
    except ValueError:  # forked off the main thread: handlers cannot be set there, and need not be
        signal.getsignal(signal.SIGTERM)
