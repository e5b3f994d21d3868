"""A machine's wall clock that jumps, as the test says: the other end of `programs/adrift.py`."""

from __future__ import annotations

import mmap
import struct
import sys
from pathlib import Path

_PROGRAM = Path(__file__).parent / "programs" / "adrift.py"


class Drift:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "drift"
        self._path.write_bytes(bytes(8))
        with self._path.open("r+b") as file:
            self._ahead = mmap.mmap(file.fileno(), 8)

    @property
    def command(self) -> tuple[str, ...]:
        """What `spotguard` is called there."""
        return (sys.executable, str(_PROGRAM), str(self._path))

    def jump(self, ahead: float) -> None:
        """The clock is so many seconds ahead from now on."""
        self._ahead[:] = struct.pack("d", ahead)

    def close(self) -> None:
        self._ahead.close()
