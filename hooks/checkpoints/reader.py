"""Objects back into tensors: in parallel, through reused frames, each chunk verified before it is copied in.

A chunk's bytes never reach a tensor unless their CRC32 is the manifest's (law 6). What fails is a
`CheckpointError`: the caller then loads the next older whole checkpoint over everything, so training never
starts from a mix.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ...providers.errors import CheckpointError
from ...providers.stores.store import BlobStore
from ..format.coverage import Coverage
from ..format.dtypes import torch_dtype
from ..format.manifest import Chunk
from .frames import Frame, box
from .writer import THREADS


@dataclass(frozen=True, slots=True)
class _Read:
    """One chunk and where it goes."""

    chunk: Chunk
    target: torch.Tensor
    dtype: torch.dtype
    name: str


def read(store: BlobStore, whole: Coverage, into: Mapping[str, torch.Tensor]) -> int:
    """Fill each tensor of `into` from the checkpoint; returns the bytes read.

    Raises:
        CheckpointError: bytes are not the ones that were saved. Tensors may be partly filled.
        StoreError: the store failed.
    """
    by_object: dict[str, list[_Read]] = {}
    for name, target in into.items():
        merged = whole.tensors[name]
        dtype = torch_dtype(merged.stored or merged.dtype)
        for rank, chunk in merged.chunks:
            key = whole.manifests[rank].object_key(chunk.object)
            part = box(target.detach(), chunk.offsets, chunk.sizes)
            by_object.setdefault(key, []).append(_Read(chunk, part, dtype, name))
    jobs = [
        (key, _runs(sorted(reads, key=lambda r: r.chunk.start))) for key, reads in sorted(by_object.items())
    ]
    return _Reading(store, [(key, run) for key, runs in jobs for run in runs]).run()


def _runs(reads: list[_Read]) -> list[list[_Read]]:
    """Neighbours in one object become one request; a gap (what this rank does not need) ends it."""
    runs: list[list[_Read]] = []
    for each in reads:
        if runs and runs[-1][-1].chunk.end == each.chunk.start:
            runs[-1].append(each)
        else:
            runs.append([each])
    return runs


class _Reading:
    """One restore's requests, shared by its threads."""

    def __init__(self, store: BlobStore, requests: list[tuple[str, list[_Read]]]) -> None:
        self._store = store
        self._requests = requests
        self._largest = max((run[-1].chunk.end - run[0].chunk.start for _, run in requests), default=0)
        self._lock = threading.Lock()
        self._next = 0
        self._bytes = 0
        self._error: BaseException | None = None

    def run(self) -> int:
        count = min(THREADS, os.cpu_count() or 1, len(self._requests))
        threads = [
            threading.Thread(target=self._work, name=f"spotguard-reader-{i}", daemon=True)
            for i in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error
        return self._bytes

    def _work(self) -> None:
        try:
            frame = Frame(self._largest)
            while (request := self._take()) is not None:
                self._fill(frame, *request)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits; the others stop
            with self._lock:
                self._error = self._error or error

    def _take(self) -> tuple[str, list[_Read]] | None:
        with self._lock:
            if self._error is not None or self._next == len(self._requests):
                return None
            self._next += 1
            return self._requests[self._next - 1]

    def _fill(self, frame: Frame, key: str, run: list[_Read]) -> None:
        start, end = run[0].chunk.start, run[-1].chunk.end
        self._store.read_into(key, start, frame.view(0, end - start))
        for each in run:
            at, to = each.chunk.start - start, each.chunk.end - start
            if zlib.crc32(frame.view(at, to)) != each.chunk.crc32:
                raise CheckpointError(
                    f"{key}: bytes {each.chunk.start} to {each.chunk.end} ({each.name}) are damaged: "
                    "their checksum is not the one that was saved"
                )
        for each in run:
            frame.copy_out(each.chunk.start - start, each.chunk.end - start, each.target, each.dtype)
        with self._lock:
            self._bytes += end - start
