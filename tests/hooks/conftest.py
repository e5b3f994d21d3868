"""What the tests of the hook side share: one thread for torch."""

from __future__ import annotations

import re
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
