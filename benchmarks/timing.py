"""Taking the time of a call that only computes: one that is long, and one that is short.

In this thread's own CPU time, so that a call that another process has interrupted is no slower for it. (What waits,
for a disk or a socket, is measured by the clock on the wall, where it is measured.)
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def seconds(call: Callable[[], object]) -> float:
    """How long one call takes."""
    gc.collect()  # of what was before: its price is not this call's
    started = time.thread_time()
    call()
    return time.thread_time() - started


def microseconds(call: Callable[[], object], *, loops: int, times: int) -> tuple[float, ...]:
    """How long a short call takes, as the mean over `loops` calls, measured `times` times."""
    found = []
    for _ in range(times):
        started = time.thread_time()
        for _ in range(loops):
            call()
        found.append((time.thread_time() - started) / loops * 1e6)
    return tuple(found)
