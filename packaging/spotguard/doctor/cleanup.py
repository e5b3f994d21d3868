"""Nothing of the doctor stays in a store: each key is noted before it is put, and removed at the end, however that comes."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from spotguard.providers.clock import Clock
from spotguard.providers.errors import StoreError
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.names import folder_of

from .timeouts import Aside, within

log = logging.getLogger("spotguard.doctor")

#: Seconds for removing all of it, and for those who still put to hear that it is over.
_CLEARING, _RETURNING = 10.0, 5.0


class Leftovers:
    """What may lie in a store because of us. A context manager: it is gone after, or `left` says what is not.

    Args:
        store: whose objects they are.
    """

    def __init__(self, store: BlobStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: list[str] = []
        self._putting: list[Aside[object]] = []
        self._made: list[Path] | None = None
        #: Set when everybody who puts has to stop.
        self.over = threading.Event()
        #: Keys that could not be removed, and why.
        self.left: tuple[str, ...] = ()
        self.why = ""
        self._cleared = False

    def note(self, key: str) -> str:
        """Before it is put."""
        self.look_once()
        with self._lock:
            self._keys.append(key)
        return key

    def look_once(self) -> None:
        """Which folders will be ours: before the first is made. A cloud's store has none."""
        if self._made is None:
            self._made = []
            if urlsplit(self._store.url).scheme != "file":
                return
            with suppress(TimeoutError):  # it stands still: then nothing is put either
                self._made = within(_RETURNING, self._clock, lambda: _missing(self._store.url), "looking")

    def removed(self, key: str) -> None:
        """It is not there any more, or never was."""
        with self._lock, suppress(ValueError):
            self._keys.remove(key)

    def putting(self, aside: Aside[object]) -> None:
        """Somebody who puts, and looks at `over`."""
        self._putting.append(aside)

    def __enter__(self) -> Leftovers:
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            self.clear(asked_for=raised[0] is None)
        except BaseException:  # Ctrl-C in the midst of it: a second one is not heard (`cli.commands.doctor`)
            self.clear(asked_for=False)
            raise

    def clear(self, *, asked_for: bool) -> None:
        """Remove all of it, once: until that has come to its end it may be called again, and begins anew.

        Args:
            asked_for: somebody will look at `left`; else it is a warning in the log.
        """
        if self._cleared:
            return
        self.over.set()
        until = self._clock.monotonic() + _RETURNING
        for aside in self._putting:  # what lands after it was removed would stay
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
        with suppress(OSError):  # not made after all, or somebody has put something there meanwhile
            os.rmdir(folder)


def _missing(url: str) -> list[Path]:
    """The folders that the first put would make, the innermost first."""
    found, folder = [], folder_of(url)
    while not os.path.lexists(folder):
        found.append(folder)
        folder = folder.parent
    return found
