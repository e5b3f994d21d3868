"""A process that dies at one of its calls to its stores: that one is done, or not, and no later one is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from spotguard.providers.stores.base import BlobStore
from tests.fakes.called import CalledStore, Request
from tests.fakes.store import Killed

T = TypeVar("T")


class Life:
    """Shared by all stores of a process. Endless until `ends` is said."""

    def __init__(self) -> None:
        self._left: int | None = None
        self._after = False
        self._lock = threading.Lock()
        self.over = False

    def ends(self, calls: int, *, after: bool) -> None:
        """So many calls from now, before or after that call's effect."""
        with self._lock:
            self._left, self._after = calls, after

    def call(self, effect: Callable[[], T]) -> T:
        # One at a time: two threads of a process die at the same instant.
        with self._lock:
            if self.over:
                raise Killed
            if self._left is None:
                return effect()
            self.over = self._left == 0
            self._left -= 1
            if not self.over:
                return effect()
            if self._after:
                effect()
            raise Killed


class Mortal(CalledStore):
    """A `BlobStore` as a process of that life sees it."""

    def __init__(self, store: BlobStore, life: Life) -> None:
        super().__init__(store)
        self._life = life

    def through(self, request: Request, effect: Callable[[], T]) -> T:
        return self._life.call(effect)
