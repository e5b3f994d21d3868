"""A wall clock that can be set for the processes of one test, as NTP or a resumed virtual machine sets it.

A time namespace shifts the monotonic clocks, and not this one. So a library in front of libc reads the wall clock's offset from a file
that all processes map. The monotonic clocks, timers and sleeps are the kernel's.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *shared;
static long long offset(void) {
    if (!shared) {
        int file = open(getenv("WALL_CLOCK"), O_RDONLY);
        void *mapped = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
        if (mapped == MAP_FAILED) abort();
        close(file);
        shared = mapped;
    }
    return *shared;
}
int clock_gettime(clockid_t clock, struct timespec *into) {
    int failed = syscall(SYS_clock_gettime, clock, into);
    if (!failed && clock == CLOCK_REALTIME) into->tv_sec += offset();
    return failed;
}
time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *into, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    into->tv_sec = now.tv_sec;
    into->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


class WallClock:
    """The wall clock of all processes that have `env` in their environment. The test is skipped without a C compiler.

    Args:
        folder: for the library and the offset, existing.
    """

    def __init__(self, folder: Path) -> None:
        if (compiler := shutil.which("cc")) is None:
            pytest.skip("no cc is here: install gcc")
        library, self._offset = folder / "wall-clock.so", folder / "wall-clock"
        self.set(0)
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-x", "c", "-o", library, "-"],
            input=_SOURCE,
            text=True,
            check=True,
        )
        self.env = {"LD_PRELOAD": str(library), "WALL_CLOCK": str(self._offset)}

    def set(self, seconds: int) -> None:
        """Set the clock so many seconds ahead of the true time, at once; negative: behind it."""
        with self._offset.open("r+b" if self._offset.exists() else "wb") as file:
            file.write(struct.pack("q", seconds))
