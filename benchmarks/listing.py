"""Large stores: what `spotguard ls`, a prune after a commit, and the choice of a restore cost in one of 100,000 objects.

Two stores: 1,000 runs with a checkpoint each, and one run with 1,000 checkpoints, which keeps every tenth. Each is measured at a
tenth of the size too: the ratio tells a quadratic step. The store is in memory, so the seconds are those of our own code;
requests are counted. Of a real store each takes its latency, sixteen at once.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any, cast

from spotguard.cli.commands.checkpoints.ls import lines_of
from spotguard.hooks.checkpoint.catalog import whole_checkpoints
from spotguard.hooks.checkpoint.format.codec import encode_manifest, encode_marker
from spotguard.hooks.checkpoint.format.keys import (
    MARKER,
    CheckpointName,
    checkpoint_prefix,
    manifest_name,
    object_name,
)
from spotguard.hooks.checkpoint.format.manifest import (
    Chunk,
    CommitMarker,
    ObjectEntry,
    RankManifest,
    TensorEntry,
)
from spotguard.hooks.checkpoint.listing import list_runs
from spotguard.hooks.checkpoint.retention import CheckedCheckpoints, plan_pruning
from spotguard.hooks.ipc.threads import side_by_side
from spotguard.providers.errors import NotFoundError
from spotguard.providers.stores.base import BlobStore, ObjectInfo

from .rows import Row
from .scale import Scale

#: Ranks of a checkpoint, and objects of each: 105 objects with the manifests and the marker.
_WORLD, _OBJECTS = 8, 12
_HEADER, _ROW = 128, 64
#: A listing grows with the store; sorting adds a little.
_LINEAR = 13.0


def measure(scale: Scale) -> Iterator[Row]:
    small, large = scale.of((100, 1000), (2, 4))
    yield from _compared("runs, a checkpoint each", small, large, _runs)
    yield from _compared("checkpoints of one run", small, large, _checkpoints)


def _compared(
    what: str, small: int, large: int, of: Callable[[int], dict[str, tuple[float, int]]]
) -> Iterator[Row]:
    before, after = of(small), of(large)
    for way, (seconds, requests) in after.items():
        name = f"{large:,} {what}: {way}"
        yield Row(name, "s", (seconds,))
        yield Row(f"{name}, requests", "requests", (float(requests),))
        yield Row(f"{name}, seconds ÷ those at {small:,}", "×", (seconds / before[way][0],), figure=_LINEAR)


def _runs(count: int) -> dict[str, tuple[float, int]]:
    store = _Store()
    for run in range(count):
        _put(store, f"run-{run}", CheckpointName(1, 100, 0))

    def ls() -> int:
        found = side_by_side(lambda run_id: lines_of(store.blobs, run_id), list_runs(store.blobs))
        return sum(map(len, found))

    return {"ls": store.measured(ls, count)}


def _checkpoints(count: int) -> dict[str, tuple[float, int]]:
    store, known = _Store(), CheckedCheckpoints()
    for save in range(count):
        _put(store, "run", CheckpointName(1, 100 * (save + 1), save))

    def prune() -> int:
        pruning = plan_pruning(store.blobs, "run", keep=3, every=1000, attempt=1, known=known)
        return len(pruning.kept) + len(pruning.departing)

    return {
        "ls": store.measured(lambda: len(lines_of(store.blobs, "run")), count),
        "the first prune of a process, every tenth stays": store.measured(prune, count),
        "each prune after it": store.measured(prune, count),
        "the choice of a restore": store.measured(
            lambda: next(whole_checkpoints(store.blobs, "run", indexed=True)).name.save + 1, count
        ),
    }


def _put(store: _Store, run_id: str, name: CheckpointName) -> None:
    prefix = checkpoint_prefix(run_id, name)
    manifests = [_manifest(run_id, name, rank) for rank in range(_WORLD)]
    for manifest in manifests:
        for entry in manifest.objects:
            store.objects[prefix + entry.name] = b"", entry.size
        store.put(prefix + manifest_name(manifest.rank, _WORLD), encode_manifest(manifest))
    store.put(prefix + MARKER, encode_marker(CommitMarker.of(manifests, 1.0)))


def _manifest(run_id: str, name: CheckpointName, rank: int) -> RankManifest:
    entries = range(_OBJECTS)
    return RankManifest(
        run_id,
        name.step,
        name.attempt,
        name.save,
        rank,
        _WORLD,
        tuple(ObjectEntry(object_name(rank, _WORLD, at), _HEADER + _ROW, _HEADER, 7) for at in entries),
        tuple(
            TensorEntry(
                f"layer.{at}",
                "int8",
                (_WORLD, _ROW),
                (Chunk((rank, 0), (1, _ROW), at, _HEADER, _HEADER + _ROW, 5),),
            )
            for at in entries
        ),
        state={f"layer.{at}": {"$": "tensor", "name": f"layer.{at}"} for at in entries},
        incarnation="nonce",
    )


class _Store:
    """A store in memory that counts requests. A listing of a real one is a request for each thousand objects."""

    def __init__(self) -> None:
        #: Content and size by key.
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.requests = 0
        self.url = "memory://store"
        self._keys: list[str] = []

    @property
    def blobs(self) -> BlobStore:
        return cast(BlobStore, self)

    def measured(self, what: Callable[[], int], expected: int) -> tuple[float, int]:
        """Return the seconds and requests of a call that must find so many checkpoints."""
        self._keys, self.requests = sorted(self.objects), 0
        began = time.perf_counter()
        found = what()
        seconds = time.perf_counter() - began
        if found != expected:
            raise RuntimeError(f"{found} were found of {expected}")
        return seconds, self.requests

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = data, len(data)

    def get(self, key: str, **_: Any) -> bytes:
        self.requests += 1
        if key not in self.objects:
            raise NotFoundError(key)
        return self.objects[key][0]

    def list(self, prefix: str, **_: Any) -> Iterator[ObjectInfo]:
        first = bisect_left(self._keys, prefix)
        keys = [
            *takewhile(
                lambda key: key.startswith(prefix), (self._keys[at] for at in range(first, len(self._keys)))
            )
        ]
        self.requests += max(1, -(-len(keys) // 1000))
        return iter([ObjectInfo(key, self.objects[key][1], 1.0) for key in keys])
