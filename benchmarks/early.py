"""Weights that are committed before the moments, though all fits: what that costs the full save, and when it is done.

Both saves of a pair write one state over one paced link, one after the other. The link takes a store's bytes at its rate
and keeps none; it answers 20 ms after the last of them.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator

from spotguard.hooks.checkpoint.format.keys import parse_manifest_name
from spotguard.hooks.checkpoint.retention import Keep
from spotguard.hooks.commit.cancel_scope import CancelScope
from spotguard.hooks.commit.plan.write_plan import WEIGHTS
from spotguard.hooks.save.checkpointer import Checkpointer
from spotguard.hooks.save.request import SavedCheckpoint, SaveSpec
from spotguard.hooks.state.state import State
from spotguard.providers.clock import SystemClock
from spotguard.providers.stores.base import ObjectInfo, Sent

from .mixture import Mixture
from .rows import Row
from .scale import Scale

#: Mbit/s, by MiB of the state: moments that take some seconds, by a link that waits for the processor and by one that does not.
_LINKS = {264: 400, 3600: 8000}
_ANSWER = 0.02
_PIECE = 2**20
#: Seconds of a notice.
_WINDOW = 120.0


def measure(scale: Scale) -> Iterator[Row]:
    for mib, link in scale.of(_LINKS, {32: 80}).items():
        yield from _pairs(mib, link, scale.of(7, 1))


def _pairs(mib: int, link: int, times: int) -> Iterator[Row]:
    trained, store, clock = Mixture(mib, stepped=True), Paced(link * 1e6 / 8), SystemClock()
    state = State({"model": trained.model, "optimizer": trained.optimizer}, lambda frame: None, clock)
    checkpointer = Checkpointer(store, "early", 1, clock=clock, keep=Keep(1))
    step = 0

    def save(*, early: bool) -> tuple[float, int, float]:
        """Seconds of the full save, its requests, and the seconds until its first manifest."""
        nonlocal step
        step += 1
        state.at_boundary()
        store.puts, store.manifests = 0, []
        began = clock.monotonic()
        checkpointer.saved._with_moments = None if early else SavedCheckpoint(step - 1, "", 0, 0.0, began)
        saved = checkpointer.save(state, SaveSpec(step), "emergency", CancelScope(clock, began + _WINDOW))
        assert saved is not None
        assert (saved.level, len(store.manifests)) == ("full", 1 + early)
        return saved.seconds, store.puts, store.manifests[0] - began

    try:
        checkpointer.rehearse(state)
        save(early=False)  # the link is known from here on
        # Which of the two comes first takes turns.
        pairs = []
        for number in range(times):
            both = {early: save(early=early) for early in ((True, False), (False, True))[number % 2]}
            pairs.append((both[True], both[False]))
        weights = checkpointer._writer.plans.of(state.collect().state_tensors).bytes_of(WEIGHTS) / store.rate
    finally:
        checkpointer.close()
        state.close()
    what = f"{mib} MiB at {link} Mbit/s, weights committed early"
    without = statistics.median(late[0] for _, late in pairs)
    yield Row(
        f"{what}: the full save",
        "s",
        tuple(early[0] for early, _ in pairs),
        figure=1.01 * without,
        peer=without,
        peer_name="without",
    )
    yield Row(f"  its requests ({pairs[0][1][1]} without)", "", tuple(early[1] for early, _ in pairs))
    yield Row(
        "  the weights' manifest ÷ their bytes ÷ link", "×", tuple(early[2] / weights for early, _ in pairs)
    )


class Paced:
    """A store behind a link of so many bytes a second, shared by all connections."""

    def __init__(self, rate: float) -> None:
        self.url = "paced:///store"
        self.parallel = 8
        self.rate = rate
        self.puts = 0
        #: When each manifest was there.
        self.manifests: list[float] = []
        self._free = 0.0
        self._lock = threading.Lock()

    def warm(self, *, timeout: float | None = None) -> None:
        pass

    def put(
        self,
        key: str,
        data: memoryview,
        *,
        timeout: float | None = None,
        crc32: int | None = None,
        sent: Sent | None = None,
    ) -> None:
        self.puts += 1
        for start in range(0, len(data), _PIECE):
            count = min(_PIECE, len(data) - start)
            with self._lock:
                free = self._free = max(self._free, time.monotonic()) + count / self.rate
            time.sleep(max(0.0, free - time.monotonic()))
            if sent is not None:
                sent(count)
        time.sleep(_ANSWER)
        if parse_manifest_name(key.rpartition("/")[2]):
            self.manifests.append(time.monotonic())

    def put_if_absent(self, key: str, data: memoryview, *, timeout: float | None = None) -> bool:
        return True

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        raise NotImplementedError(key)

    def read_into(self, key: str, start: int, buffer: memoryview, *, timeout: float | None = None) -> None:
        raise NotImplementedError(key)

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        return iter(())

    def delete(self, keys: object, *, timeout: float | None = None) -> None:
        pass
