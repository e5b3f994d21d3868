"""A fake store that a test can wait on, and that waits for the test."""

from __future__ import annotations

import threading
from collections.abc import Callable

from spotguard.providers.stores.store import Sent
from tests.fakes.store import FakeStore

#: Seconds after which a wait counts as a hang.
PATIENCE = 20.0


class WatchedStore(FakeStore):
    """Tells when something was put, and holds the puts that a test wants held."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self._held: Callable[[str], bool] | None = None
        #: Set when a put is held.
        self.reached = threading.Event()

    def hold(self, which: Callable[[str], bool]) -> None:
        """From now on a put whose key fits waits for `let_go`."""
        with self._changed:
            self._held = which
            self.reached.clear()
            self._changed.notify_all()

    def let_go(self) -> None:
        """Nothing is held any more."""
        with self._changed:
            self._held = None
            self._changed.notify_all()

    def put(
        self,
        key: str,
        data: memoryview,
        *,
        timeout: float | None = None,
        crc32: int | None = None,
        sent: Sent | None = None,
    ) -> None:
        with self._changed:
            while self._held is not None and self._held(key):
                self.reached.set()
                assert self._changed.wait(PATIENCE)
        super().put(key, data, timeout=timeout, crc32=crc32, sent=sent)
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, there: Callable[[list[str]], bool]) -> None:
        """Until the keys in the store are as a test wants them."""
        with self._changed:
            assert self._changed.wait_for(lambda: there(list(self.objects)), PATIENCE), list(self.objects)

    def wait_committed(self, count: int = 1) -> None:
        """Until so many checkpoints carry their marker."""
        self.wait_for(lambda keys: len([key for key in keys if key.endswith("COMMIT.json")]) >= count)

    def kinds(self) -> dict[str, int]:
        """How many objects, manifests and markers there are."""
        names = [key.partition("/checkpoints/")[2] for key in self.objects]
        return {
            "objects": sum(name.endswith(".safetensors") for name in names),
            "manifests": sum(name.endswith(".json") and "-of-" in name for name in names),
            "markers": sum(name.endswith("COMMIT.json") for name in names),
        }
