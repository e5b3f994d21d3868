"""`spotguard` on a machine whose wall clock is wrong: `adrift.py FILE WORDS…`.

FILE holds the seconds by which the clock is ahead, as a double, and may change at any time. Monotonic time goes on as
it should, as the kernel's does.
"""

from __future__ import annotations

import mmap
import runpy
import struct
import sys
import time


def main(path: str) -> None:
    with open(path, "rb") as file:
        ahead = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)
    true = time.time
    time.time = lambda: true() + struct.unpack("d", ahead)[0]
    runpy.run_module("spotguard", run_name="__main__")


if __name__ == "__main__":
    path = sys.argv.pop(1)
    main(path)
