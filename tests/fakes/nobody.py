"""To be somebody with few rights: as root one may look into every folder and write to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_NOBODY = 65534


@contextmanager
def nobody() -> Iterator[None]:
    """In here root is nobody (every thread: setxid is the C library's); another user stays who it is."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
