"""One save's objects, as the writer's threads share them: the next, how far they are, the first error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ...providers.errors import StoreError
from ..format.chunks import PlannedObject
from .effort import Abandoned, Effort

#: Called with a phase, the bytes that are in the store, and the bytes of all. It must not wait.
Progress = Callable[[str, int, int], None]


class Work:
    """Shared by so many `hands`, and by the thread that waits for them until it calls them off."""

    def __init__(
        self,
        objects: Sequence[PlannedObject],
        hands: int,
        effort: Effort,
        progress: Progress | None,
        moved: Callable[[], str],
    ) -> None:
        self.objects = objects
        self.effort = effort
        self.moved = moved
        self.crcs: dict[int, list[int]] = {}
        self.error: BaseException | None = None
        #: Set when it is `over`.
        self.changed = threading.Event()
        self._progress = progress
        self._lock = threading.Lock()
        self._hands = hands
        self._next = 0
        self._begun = False
        self._bytes = 0
        self._total = sum(planned.size for planned in objects)
        self._said = ""

    # --- who waits ---

    def over(self) -> bool:
        """Whether every hand is free again."""
        return self._hands == 0

    def call_off(self, why: Abandoned) -> None:
        """No hand begins anything more, and what they still do counts for nothing."""
        with self._lock:
            if self.error is None:
                self.error = Abandoned(f"{why}; the store said last: {self._said}") if self._said else why

    # --- the hands ---

    def next(self) -> int | None:
        with self._lock:
            if self.error is not None or self._next == len(self.objects):
                return None
            self._next += 1
            return self._next - 1

    def starts(self) -> None:
        """A put begins: the first of them is the save's first byte on its way."""
        with self._lock:
            first, self._begun = not self._begun, True
        if first and self.error is None and self._progress is not None:
            self._progress("first-byte", 0, self._total)

    def done(self, index: int, crcs: list[int]) -> None:
        with self._lock:
            self.crcs[index] = crcs
            self._bytes += self.objects[index].size
            done = self._bytes
        if self._progress is not None and self.error is None:
            self._progress("written" if done == self._total else "writing", done, self._total)

    def fail(self, error: BaseException) -> None:
        with self._lock:
            if self.error is None:
                self.error = error

    def hear(self, error: StoreError) -> None:
        """The store failed for now."""
        self._said = str(error)

    def ended(self) -> None:
        with self._lock:
            self._hands -= 1
        self.changed.set()
