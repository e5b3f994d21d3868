"""A fake store whose reads a test can hold, spoil on their way, and count."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.fakes.store import FakeStore

#: Seconds after which a wait counts as a hang.
PATIENCE = 100.0


class Reads(FakeStore):
    """Counts reads from 0, by when they began. `hold` and `spoil` are asked with number, key and first byte."""

    def __init__(self) -> None:
        super().__init__()
        self.hold: Callable[[int, str, int], bool] = lambda number, key, start: False
        self.spoil: Callable[[int, str, int], bool] = lambda number, key, start: False
        #: (key, first byte, bytes) of each, in order.
        self.reads: list[tuple[str, int, int]] = []
        self.timeouts: list[float | None] = []
        #: Set when a read is held; those held go on when `go` is.
        self.held = threading.Event()
        self.go = threading.Event()
        self._counting = threading.Lock()

    def read_into(self, key: str, start: int, buffer: memoryview, *, timeout: float | None = None) -> None:
        with self._counting:
            number = len(self.reads)
            self.reads.append((key, start, len(buffer)))
            self.timeouts.append(timeout)
        if self.hold(number, key, start):
            self.held.set()
            assert self.go.wait(PATIENCE)
        super().read_into(key, start, buffer, timeout=timeout)
        if self.spoil(number, key, start):
            buffer[len(buffer) // 2] ^= 1

    @property
    def nbytes(self) -> int:
        """What was asked for, all in all."""
        return sum(size for _, _, size in self.reads)


@contextmanager
def ctrl_c_as_usual() -> Iterator[Callable[[], None]]:
    """SIGINT is Python's own inside, also where a shell that started us in the background had it ignored. Yields what
    sends it to the main thread."""
    main = threading.main_thread().ident
    assert main is not None
    assert threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield lambda: signal.pthread_kill(main, signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
