"""The cyclic garbage collector at rest, where millions of values are made of which none is garbage."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Look for no cyclic garbage inside: reading the manifests of 128 ranks takes a third of the time.

    What was made meanwhile is old at the end, unseen: to look through it once more would cost a quarter again. (To freeze and
    unfreeze is what moves it there, at no cost; not where something is frozen already: by somebody, or by Python 3.12 itself,
    which starts with some hundred objects frozen.)

    On the main thread only: the switch is the whole process's, and what a training script does to it while a thread of
    ours reads would be undone at the end. It is only put off; who has switched the collector off keeps it so.
    """
    if threading.current_thread() is not threading.main_thread() or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()
