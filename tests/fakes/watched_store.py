"""A fake store that a test can wait on, and that waits for the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from spotguard.hooks.checkpoint.format.keys import MARKER
from spotguard.providers.stores.base import ObjectInfo, Sent
from tests.fakes.store import FakeStore

#: Seconds after which a wait counts as a hang.
PATIENCE = 100.0


def is_object(key: str) -> bool:
    return key.endswith(".safetensors")


def is_manifest(key: str) -> bool:
    return "-of-" in key and key.endswith(".json")


def is_marker(key: str) -> bool:
    return key.endswith(MARKER)


class WatchedStore(FakeStore):
    """Tells when something was put, and holds what a test wants held: puts, or another verb's calls."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self._held: Callable[[str], bool] | None = None
        self._verb = "put"
        #: Set when something is held.
        self.reached = threading.Event()

    def hold(self, which: Callable[[str], bool], verb: str = "put") -> None:
        """From now on a call of "put", "list" or "delete" whose key (or prefix) fits waits for `let_go`."""
        with self._changed:
            self._held, self._verb = which, verb
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
        self._pass("put", key)
        super().put(key, data, timeout=timeout, crc32=crc32, sent=sent)
        with self._changed:
            self._changed.notify_all()

    def _delete(self, key: str, timeout: float | None) -> None:
        self._pass("delete", key)
        super()._delete(key, timeout)
        with self._changed:
            self._changed.notify_all()

    def _pass(self, verb: str, key: str) -> None:
        with self._changed:
            while self._held is not None and self._verb == verb and self._held(key):
                self.reached.set()
                assert self._changed.wait(PATIENCE)

    def wait_for(self, there: Callable[[list[str]], bool]) -> None:
        """Until the keys in the store are as a test wants them."""
        with self._changed:
            assert self._changed.wait_for(lambda: there(list(self.objects)), PATIENCE), list(self.objects)

    def wait_committed(self, count: int = 1) -> None:
        """Until so many checkpoints carry their marker."""
        self.wait_for(lambda keys: sum(map(is_marker, keys)) >= count)

    def kinds(self) -> dict[str, int]:
        """How many objects, manifests and markers there are."""
        names = [key.partition("/checkpoints/")[2] for key in self.objects]
        return {
            "objects": sum(map(is_object, names)),
            "manifests": sum(map(is_manifest, names)),
            "markers": sum(map(is_marker, names)),
        }

    def manifests(self) -> list[str]:
        """Of each manifest the name of its checkpoint, in the order in which they were put."""
        return [key.split("/")[2] for key in self.objects if is_manifest(key)]

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        self._pass("list", prefix)
        return super().list(prefix, timeout=timeout)
