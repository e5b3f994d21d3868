"""A fake store behind a link of a known rate: the bytes of objects move the test's clock on."""

from __future__ import annotations

import threading

from spotguard.providers.stores.base import Sent
from tests.fakes.clock import ManualClock
from tests.fakes.watched_store import WatchedStore

#: Pieces in which an object leaves.
_PIECES = 32


class SlowStore(WatchedStore):
    """One link for all puts of objects. What is small (manifests, markers, outcomes) takes no time."""

    def __init__(self, clock: ManualClock, rate: float = float("inf")) -> None:
        super().__init__()
        self.clock = clock
        #: Bytes a second.
        self.rate = rate
        self._link = threading.Lock()

    def put(
        self,
        key: str,
        data: memoryview,
        *,
        timeout: float | None = None,
        crc32: int | None = None,
        sent: Sent | None = None,
    ) -> None:
        def state_tensors(count: int) -> None:
            assert sent is not None
            for number in range(_PIECES):
                piece = count * (number + 1) // _PIECES - count * number // _PIECES
                with self._link:
                    self.clock.advance(piece / self.rate)
                sent(piece)

        super().put(key, data, timeout=timeout, crc32=crc32, sent=None if sent is None else state_tensors)

    def nbytes(self, name: str = ".safetensors") -> int:
        """Of the objects of the newest checkpoint whose names end so."""
        newest = max(key.split("/")[2] for key in self.objects if key.endswith(".safetensors"))
        return sum(len(data) for key, data in self.objects.items() if newest in key and key.endswith(name))
