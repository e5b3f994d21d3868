"""How much memory is read between two looks at whether a save may go on, by the marks that the kernel keeps of each page."""

from __future__ import annotations

import re
import threading
from pathlib import Path

from spotguard.hooks.checkpoints.effort import Effort
from spotguard.providers.clock import SystemClock

_SMAPS, _CLEAR = Path("/proc/self/smaps"), Path("/proc/self/clear_refs")
_REFERENCED = re.compile(r"^Referenced:\s+(\d+) kB", re.MULTILINE)


class Touched(Effort):
    """An `Effort` that counts all of this process's memory, some MiB of code among it (proc(5), `/proc/pid/smaps`).

    From `begin` to `end`, both on the saving thread, or to the first look of another one: what the writer's threads read
    they send.
    """

    def __init__(self) -> None:
        super().__init__(SystemClock())
        #: Bytes at the most from one look to the next.
        self.most = 0
        self.looks = 0
        self._thread = 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        self._thread = threading.get_ident()
        _CLEAR.write_text("1")

    def end(self) -> None:
        self._note()
        self._thread = 0

    def check(self) -> None:
        self._note()
        super().check()

    @property
    def abandoned(self) -> bool:
        self._note()
        return super().abandoned

    def _note(self) -> None:
        with self._lock:
            if self._thread:
                referenced = _REFERENCED.findall(_SMAPS.read_text())
                self.most = max(self.most, 1024 * sum(map(int, referenced)))
                self.looks += 1
                _CLEAR.write_text("1")
            if threading.get_ident() != self._thread:
                self._thread = 0
