"""How much memory is read between two looks at whether a save may go on, by the marks that the kernel keeps of each page."""

from __future__ import annotations

import gc
import re
from pathlib import Path

from spotguard.hooks.commit.cancel_scope import CancelScope
from spotguard.providers.clock import SystemClock

_SMAPS, _CLEAR = Path("/proc/self/smaps"), Path("/proc/self/clear_refs")
_MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) ", re.MULTILINE)
_REFERENCED = re.compile(r"^Referenced:\s+(\d+) kB", re.MULTILINE)


class Touched(CancelScope):
    """An `CancelScope` that counts from `begin` to `end` (proc(5), `/proc/pid/smaps`).

    Args:
        address: in the mapping that alone counts; None: all memory of this process, with a few MiB of its own code.
    """

    def __init__(self, address: int | None = None) -> None:
        super().__init__(SystemClock())
        #: Bytes at the most from one look to the next.
        self.most = 0
        self.looks = 0
        self._address = address
        self._counting = False

    def begin(self) -> None:
        gc.disable()  # a full collection touches all that the suite has imported: 130 MiB
        self._counting = True
        _CLEAR.write_text("1")

    def end(self) -> None:
        self._note()
        self._counting = False
        gc.enable()

    def check(self) -> None:
        self._note()
        super().check()

    @property
    def abandoned(self) -> bool:
        self._note()
        return super().abandoned

    def _note(self) -> None:
        if not self._counting:
            return
        maps = _SMAPS.read_text()
        if self._address is not None:
            maps = next(found for found in _mappings(maps) if self._address in found[0])[1]
        self.most = max(self.most, 1024 * sum(map(int, _REFERENCED.findall(maps))))
        self.looks += 1
        _CLEAR.write_text("1")


def _mappings(text: str) -> list[tuple[range, str]]:
    starts = list(_MAPPING.finditer(text))
    ends = [each.start() for each in starts[1:]] + [len(text)]
    return [
        (range(int(each[1], 16), int(each[2], 16)), text[each.start() : end])
        for each, end in zip(starts, ends, strict=True)
    ]
