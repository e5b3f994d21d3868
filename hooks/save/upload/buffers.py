"""Memory that the bytes of an object pass through, on their way to a store or back."""

from __future__ import annotations

import mmap
from typing import Protocol, TypeVar


class Buffer(Protocol):
    """Reused memory of a fixed size. One thread uses it at a time."""

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    def view(self, start: int, end: int) -> memoryview:
        """Return these bytes, without a copy."""
        ...


class PlainBuffer:
    """A `Buffer` without torch. (Tensors are copied into the one of `state.host_buffer`.)

    Args:
        size: in bytes.
    """

    def __init__(self, size: int) -> None:
        self._view = memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self._view)

    def view(self, start: int, end: int) -> memoryview:
        """Return these bytes, without a copy."""
        return self._view[start:end]


B = TypeVar("B", bound=Buffer)
