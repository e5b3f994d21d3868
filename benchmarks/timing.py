"""Taking the time of a call: one that is long, and one that is short."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def seconds(call: Callable[[], object]) -> float:
    """How long one call takes."""
    gc.collect()  # of what was before: its price is not this call's
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def microseconds(call: Callable[[], object], *, loops: int, times: int) -> tuple[float, ...]:
    """How long a short call takes, as the mean over `loops` calls, measured `times` times."""
    found = []
    for _ in range(times):
        started = time.perf_counter()
        for _ in range(loops):
            call()
        found.append((time.perf_counter() - started) / loops * 1e6)
    return tuple(found)
