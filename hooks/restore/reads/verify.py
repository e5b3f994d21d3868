"""Verification: read every byte of a checkpoint again, and its state as a restore does; report damage. Nothing is loaded."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from ....providers.clock import Clock, SystemClock
from ....providers.errors import CheckpointError, NotFoundError, StoreError
from ....providers.stores.base import BlobStore
from ...checkpoint.catalog import WholeCheckpoint
from ...checkpoint.format.manifest import Chunk, RankManifest
from ...checkpoint.format.safetensors_header import WRONG_HEADER, wrong_headers
from ...checkpoint.format.values.state_check import StateCheck
from ...commit.upload.workers import PlainBuffer
from .fetch import BufferSpan, Fetch, Progress
from .ranges import ReadBatch, WantedChunk, plan


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that differ from the ones that were written, or a manifest whose state no restore can read."""

    key: str
    #: Name of the tensor; "" for the object's header, and in a manifest.
    tensor: str
    #: Offsets of the chunk in the tensor.
    offsets: tuple[int, ...]
    reason: str
    #: The object does not exist. This is damage, unless its checkpoint was removed during the read.
    gone: bool = False

    def __str__(self) -> str:
        if self.tensor:
            return f"{self.key}: tensor {self.tensor!r} at {list(self.offsets)}: {self.reason}"
        return (
            f"{self.key}: {self.reason}"
            if self.key.endswith(".json")
            else f"{self.key}: header: {self.reason}"
        )


class _DamageReport:
    """The sink of a verification: it keeps the damage and drops sound bytes.

    Args:
        clock: the clock.
        rate: bytes a second at most, if one thread reads; None: no limit.
    """

    def __init__(self, clock: Clock, rate: float | None) -> None:
        self._clock = clock
        self._rate = rate
        self._never = threading.Event()
        self._lock = threading.Lock()
        self._found: dict[tuple[str, int], Damage] = {}
        self._lost: dict[str, Damage] = {}

    def take(self, wanted: WantedChunk, spans: Sequence[BufferSpan[PlainBuffer]]) -> None:
        """Drop sound bytes, and wait for as long as the rate says."""
        if self._rate is not None:
            nbytes = sum(span.end - span.start for span in spans)
            self._clock.wait(self._never, nbytes / self._rate)

    def damaged(self, wanted: WantedChunk) -> None:
        offsets = wanted.chunk.offsets if wanted.name else ()
        damage = Damage(wanted.key, wanted.name, offsets, "CRC32 differs")
        with self._lock:
            self._found[wanted.key, wanted.chunk.start] = damage

    def lost(self, load: ReadBatch, error: StoreError) -> None:
        key = load.ranges[0].key
        with self._lock:
            self._lost.setdefault(key, Damage(key, "", (), str(error), isinstance(error, NotFoundError)))

    def headers(self, manifest: RankManifest) -> None:
        """Note damage in each object whose header is not the one that its manifest gives."""
        for key in wrong_headers(manifest):
            self._found[key, -2] = Damage(key, "", (), WRONG_HEADER)

    def damages(self, keys: Sequence[str]) -> list[Damage]:
        """Return the damage in the order of the objects and their bytes. A missing or short object counts once."""
        order = {key: number for number, key in enumerate(keys)}
        placed = {**self._found, **{(key, -1): damage for key, damage in self._lost.items()}}
        return [placed[place] for place in sorted(placed, key=lambda place: (order[place[0]], place[1]))]


def verify(
    store: BlobStore,
    whole: WholeCheckpoint,
    *,
    progress: Progress | None = None,
    clock: Clock | None = None,
    rate: float | None = None,
) -> list[Damage]:
    """Return all damage in a checkpoint and in the objects that it refers to; empty if each CRC agrees and its state can be read.

    Args:
        store: the store with the checkpoint.
        whole: the checkpoint, from the catalog.
        progress: called with (bytes read, bytes in total) during the read.
        clock: measures which request lags behind the others.
        rate: bytes a second at most, by one request at a time; None: no limit.

    Raises:
        UnsupportedFormatError: this version cannot read the checkpoint.
        StoreError: the store failed, so the state of the checkpoint is not known.
    """
    wanted = _everything(whole)
    clock = clock or SystemClock()
    report = _DamageReport(clock, rate)
    unreadable = _unreadable(whole)
    for manifest in whole.manifests:
        report.headers(manifest)
    Fetch(
        store,
        plan(wanted),
        PlainBuffer,
        report,
        progress=progress,
        clock=clock,
        readers=None if rate is None else 1,
    ).run()
    return unreadable + report.damages(list(dict.fromkeys(each.key for each in wanted)))


def _unreadable(whole: WholeCheckpoint) -> list[Damage]:
    """Return each manifest whose state no restore can read."""
    state, found = StateCheck(whole.manifests), []
    for manifest in whole.manifests:
        try:
            state.check(manifest)
        except CheckpointError as error:
            found.append(Damage(manifest.key, "", (), str(error)))
    return found


def _everything(whole: WholeCheckpoint) -> list[WantedChunk]:
    """Return the header and the chunks of every object, which together are all its bytes."""
    wanted: dict[str, list[WantedChunk]] = {}
    for manifest in whole.manifests:
        keys = [manifest.object_key(index) for index in range(len(manifest.objects))]
        for key, entry in zip(keys, manifest.objects, strict=True):
            header = Chunk((0,), (entry.header,), 0, 0, entry.header, entry.header_crc32)
            wanted.setdefault(key, [WantedChunk(key, header, 1, "")])
        for tensor in manifest.tensors:
            for chunk in tensor.chunks:
                key = keys[chunk.object]
                wanted[key].append(WantedChunk(key, chunk, tensor.itemsize, tensor.name))
    return [each for chunks in wanted.values() for each in chunks]
