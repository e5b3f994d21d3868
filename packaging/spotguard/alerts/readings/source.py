"""A source of readings in a thread of its own: a disk or a driver that hangs must hold nothing else up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator

from .host import Reading

log = logging.getLogger("spotguard.agent")

#: Seconds that all sources together have for one reading. One that takes longer is not waited for again until it has answered.
PATIENCE = 0.5


class ReadingSource:
    """One source. One thread calls it, and another one reads.

    Args:
        name: the source, for people.
        read: reads it; may hang.
    """

    def __init__(self, name: str, read: Callable[[], Iterable[Reading]]) -> None:
        self.name = name
        self._read = read
        self._wanted, self._done = threading.Event(), threading.Event()
        self._found: list[Reading] = []
        #: Whether it has not answered in time.
        self.hangs = False
        self._done.set()
        threading.Thread(target=self._run, name=f"spotguard-reads-{name}", daemon=True).start()

    def ask(self) -> None:
        """Have the source read, unless it still does."""
        if self._done.is_set():
            self._done.clear()
            self._wanted.set()

    def answer(self, patience: float) -> list[Reading]:
        """Return what was read; nothing if it does not come in time."""
        in_time = self._done.wait(0.0 if self.hangs else patience)
        if in_time and self.hangs:
            log.info("%s can be read again", self.name)
        elif not in_time and not self.hangs:
            log.warning("%s cannot be read: it hangs; incidents about it are off [SG113]", self.name)
        self.hangs = not in_time
        return self._found if in_time else []

    def _run(self) -> None:
        while self._wanted.wait():
            self._wanted.clear()
            try:
                self._found = [*self._read()]
            except Exception:
                self._found = []
                log.exception("an error of the helper of alerts in reading %s", self.name)
            self._done.set()


def read_all(sources: Iterable[ReadingSource]) -> Iterator[Reading]:
    """Yield what all sources read within their time."""
    for source in sources:
        source.ask()
    for source in sources:
        yield from source.answer(PATIENCE)
