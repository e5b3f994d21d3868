"""What the tests of the hook side share: one thread for torch, and memory that does not grow."""

from __future__ import annotations

import ctypes
import gc
import re
import resource
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

#: What a file says that imports torch at its top.
NEEDS_TORCH = re.compile(r"^pytestmark = .*pytest\.mark\.torch", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Such a file is not looked at where there is no torch."""
    if find_spec("torch") is None and collection_path.suffix == ".py":
        return NEEDS_TORCH.search(collection_path.read_text()) is not None or None
    return None


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Bits are compared, and the number of threads is part of them."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


#: Bytes by which a process of the suite may grow before it looks for garbage.
GROWTH = 128 * 2**20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Garbage:
    """What tests have left in cycles. A closed guard is one, of few objects and with all bytes of its model.

    Python looks at all objects when their number has grown by a quarter. Of a million that the suite has imported and collected
    that is seldom: a worker grew to 3 GiB.
    """

    def __init__(self) -> None:
        self._after = resident()

    def collect(self) -> None:
        if resident() > self._after + GROWTH:
            gc.collect()
            # glibc keeps what was freed between two blocks that live (malloc_trim(3)).
            ctypes.CDLL(None).malloc_trim(0)
            self._after = resident()


_garbage = Garbage()


@pytest.fixture(autouse=True)
def _memory_of_few_tests() -> Iterator[None]:
    yield
    _garbage.collect()
