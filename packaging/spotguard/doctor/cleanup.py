"""The doctor's cleanup: each key is noted before its put, and removed at the end of the visit, even after an error or Ctrl-C."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from pathlib import Path

from spotguard.providers.clock import Clock
from spotguard.providers.errors import StoreError
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.names import folder_of
from spotguard.providers.stores.url import scheme_of

from .timeouts import Aside, within

log = logging.getLogger("spotguard.doctor")

#: Seconds for deleting all keys, and for threads that still put to notice the end.
_CLEARING, _RETURNING = 10.0, 5.0


class Leftovers:
    """The objects that the doctor may have put into a store. A context manager that deletes them at its end.

    `left` then names those that could not be deleted.

    Args:
        store: the store that has the objects.
        clock: times the cleanup.
    """

    def __init__(self, store: BlobStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: list[str] = []
        self._putting: list[Aside[object]] = []
        self._made: list[Path] | None = None
        #: Set when every thread that puts has to stop.
        self.over = threading.Event()
        #: Keys that could not be deleted.
        self.left: tuple[str, ...] = ()
        #: Why they could not be deleted.
        self.why = ""
        self._cleared = False

    def note(self, key: str) -> str:
        """Note a key before its put, and return it."""
        self.look_once()
        with self._lock:
            self._keys.append(key)
        return key

    def look_once(self) -> None:
        """Note which directories the first put will make, before it makes them. A cloud's store has none."""
        if self._made is None:
            self._made = []
            if scheme_of(self._store.url) != "file":
                return
            with suppress(TimeoutError):  # the file system hangs, so no put follows
                self._made = within(_RETURNING, self._clock, lambda: _missing(self._store.url), "looking")

    def removed(self, key: str) -> None:
        """Forget a key that does not exist: it was deleted, or never put."""
        with self._lock, suppress(ValueError):
            self._keys.remove(key)

    def putting(self, aside: Aside[object]) -> None:
        """Note a call that puts and stops when `over` is set."""
        self._putting.append(aside)

    def __enter__(self) -> Leftovers:
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            self.clear(asked_for=raised[0] is None)
        except BaseException:  # a signal during the cleanup; `spotguard doctor` ignores a second one
            self.clear(asked_for=False)
            raise

    def clear(self, *, asked_for: bool) -> None:
        """Delete all noted keys, once. If a call was interrupted, the next one starts again.

        Args:
            asked_for: the caller reads `left`. Otherwise keys that stay are a warning in the log.
        """
        if self._cleared:
            return
        self.over.set()
        until = self._clock.monotonic() + _RETURNING
        for aside in self._putting:  # an object that is put after the deletion would stay
            aside.ended(self._clock, until)
        with self._lock:
            keys = list(self._keys)
        if keys:
            try:
                within(
                    _CLEARING, self._clock, lambda: self._store.delete(keys, timeout=_CLEARING), "clearing"
                )
            except (StoreError, TimeoutError) as error:
                self.left, self.why = tuple(keys), str(error)
                if not asked_for:
                    log.warning(
                        "what the doctor has put stays in %s: delete %s/probes there by hand (%s)",
                        self._store.url,
                        keys[0].partition("/")[0],
                        error,
                    )
        if self._made and not self.left:
            made = self._made
            with suppress(TimeoutError):
                within(_RETURNING, self._clock, lambda: _remove(made), "folders")
        self._cleared = True


def _remove(folders: list[Path]) -> None:
    for folder in folders:
        with suppress(OSError):  # it was never made, or another program has put something into it
            os.rmdir(folder)


def _missing(url: str) -> list[Path]:
    """Return the directories that the first put would make, the innermost first."""
    missing, folder = [], folder_of(url)
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = folder.parent
    return missing
