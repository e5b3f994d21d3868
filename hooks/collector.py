"""The cyclic garbage collector at rest, where millions of values are made of which none is garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Look for no cyclic garbage inside: reading the manifests of 128 ranks takes a third of the time.

    It is only put off; a training script that has switched the collector off keeps it so.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
