"""Asking a store until it answers: what only failed for now is asked again, for as long as the save may go on."""

from __future__ import annotations

from collections.abc import Callable

from ...providers.errors import CorruptError, StoreError
from .effort import Abandoned, Effort

#: Tries of an object whose bytes the store says are not the ones that were sent.
_CORRUPT_TRIES = 3
#: Seconds before a put that failed for a while is tried again: doubled each time up to the second number.
_RETRY_FIRST, _RETRY_MOST = 0.1, 2.0


def retry(
    effort: Effort,
    ask: Callable[[float | None], object],
    hear: Callable[[StoreError], None] = lambda error: None,
) -> float:
    """Ask a store, again and again while it only fails for now and the save may go on. Returns the seconds that the try took
    that went well.

    Args:
        ask: called with the seconds that are left.
        hear: called with each failure for now.
    """
    pause, tries = _RETRY_FIRST, _CORRUPT_TRIES
    effort.check()
    while True:
        began = effort.now()
        try:
            ask(effort.left())
            return effort.now() - began
        except StoreError as error:
            tries -= isinstance(error, CorruptError)  # on its way, as far as anybody can tell
            if not (error.transient or (isinstance(error, CorruptError) and tries)):
                raise
            last = error
        hear(last)
        try:
            effort.pause(pause)
        except Abandoned as why:
            raise Abandoned(f"{why}; the store said last: {last}") from last
        pause = min(2 * pause, _RETRY_MOST)
