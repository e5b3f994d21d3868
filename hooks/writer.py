"""State into objects: planned once, put together in reused frames, one plain put each, from a few threads.

At the notice only bytes move: no planning on the way (headers are made before the first byte), no allocation
(frames are touched at `register`), no collective, and no wait that does not end at the save's own deadline.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..providers.errors import SpotguardError, StoreError
from ..providers.store import BlobStore
from .chunks import Item, PlannedObject, plan
from .dtypes import dtype_name
from .effort import Abandoned, Effort
from .frames import Frame, box
from .keys import CheckpointName, checkpoint_prefix, object_name
from .manifest import Chunk, ObjectEntry, TensorEntry
from .parts import Leaf

#: Bytes of one object: 4 of them in flight stay far below the 512 MiB of law 9.
OBJECT_BYTES = 32 * 2**20
#: Each thread owns a frame: while one waits for the store, another copies and checks.
THREADS = 4
#: Seconds before a put that failed for a while is tried again: doubled each time up to the second number.
_RETRY_FIRST, _RETRY_MOST = 0.1, 2.0

Progress = Callable[[str, int, int], None]


class Spoiled(SpotguardError):
    """The state moved while it was read; the message says what."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a manifest says about the bytes."""

    objects: tuple[ObjectEntry, ...]
    tensors: tuple[TensorEntry, ...]


class Writer:
    """Writes one rank's share of checkpoints into one store. Used by one thread; it starts its own."""

    def __init__(self, store: BlobStore, run_id: str, rank: int = 0, world: int = 1) -> None:
        self._store = store
        self._run_id = run_id
        self._rank = rank
        self._world = world
        self._frames: list[Frame] = []

    def warm(self, nbytes: int) -> None:
        """Have the frames that a state of `nbytes` needs, every page touched."""
        size = min(OBJECT_BYTES, max(nbytes + 2**20, 2**20))
        wanted = max(1, min(THREADS, os.cpu_count() or 1, -(-nbytes // size)))
        self._frames = [f for f in self._frames if f.size >= size]
        while len(self._frames) < wanted:
            self._frames.append(Frame(size))

    def write(
        self,
        leaves: Sequence[Leaf],
        name: CheckpointName,
        effort: Effort,
        progress: Progress | None = None,
        moved: Callable[[], str] = str,
    ) -> Written:
        """Put every tensor into the store under `name`. Returns when all objects are durable there.

        Args:
            moved: asked after each object's bytes were read: nothing, or what has moved since the boundary.

        Raises:
            Spoiled: `moved` said so; what was read is not to be kept.
            Abandoned: the deadline passed, or the save was called off.
            StoreError: the store refuses, or failed for longer than the save may go on.
        """
        items = [Item(leaf.name, dtype_name(leaf.tensor.dtype), tuple(leaf.tensor.shape)) for leaf in leaves]
        self.warm(sum(leaf.tensor.nbytes for leaf in leaves))
        objects = plan(items, self._frames[0].size)
        work = _Work(objects, effort, progress, moved)
        threads = [
            threading.Thread(
                target=self._run, args=(work, frame, leaves, name), name=f"spotguard-writer-{i}", daemon=True
            )
            for i, frame in enumerate(self._frames[: len(objects)])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if work.error is not None:
            raise work.error
        effort.check()
        return Written(self._entries(objects, work), _tensors(items, objects, work.crcs))

    def unchanged(self, leaves: Sequence[Leaf], written: Written, effort: Effort) -> str:
        """Read what anybody may have changed a second time; "" or the name of a tensor that differs by now."""
        for leaf, entry in zip(leaves, written.tensors, strict=True):
            if leaf.still:
                continue
            for chunk in entry.chunks:
                effort.check()
                again = self._frames[0].copy_in(box(leaf.tensor, chunk.offsets, chunk.sizes), 0)
                if again != chunk.crc32:
                    return leaf.name
        return ""

    # --- one thread ---

    def _run(self, work: _Work, frame: Frame, leaves: Sequence[Leaf], name: CheckpointName) -> None:
        try:
            while (index := work.next()) is not None:
                planned = work.objects[index]
                frame.write(0, planned.header)
                crcs = []
                for piece in planned.pieces:
                    work.effort.check()
                    source = box(leaves[piece.item].tensor, piece.local, piece.sizes)
                    crcs.append(frame.copy_in(source, piece.start))
                if why := work.moved():
                    raise Spoiled(why)
                work.starts()
                self._put(name, index, frame.view(0, planned.size), work.effort)
                work.done(index, crcs)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits; the others stop
            work.fail(error)

    def _put(self, name: CheckpointName, index: int, data: memoryview, effort: Effort) -> None:
        key = checkpoint_prefix(self._run_id, name) + object_name(self._rank, self._world, index)
        retry(effort, lambda left: self._store.put(key, data, timeout=left))

    def _entries(self, objects: Sequence[PlannedObject], work: _Work) -> tuple[ObjectEntry, ...]:
        return tuple(
            ObjectEntry(
                name=object_name(self._rank, self._world, index),
                size=planned.size,
                header=len(planned.header),
                header_crc32=zlib.crc32(planned.header),
            )
            for index, planned in enumerate(objects)
        )


def retry(effort: Effort, ask: Callable[[float | None], object]) -> None:
    """Ask a store, again and again while it only fails for now and the save may go on.

    `ask` is called with the seconds that are left.
    """
    pause = _RETRY_FIRST
    effort.check()
    while True:
        try:
            ask(effort.left())
            return
        except StoreError as error:
            if not error.transient:
                raise
            last = error
        try:
            effort.pause(pause)
        except Abandoned as why:
            raise Abandoned(f"{why}; the store said last: {last}") from last
        pause = min(2 * pause, _RETRY_MOST)


class _Work:
    """What the writer's threads share: the next object, how far they are, the first error."""

    def __init__(
        self,
        objects: Sequence[PlannedObject],
        effort: Effort,
        progress: Progress | None,
        moved: Callable[[], str],
    ) -> None:
        self.objects = objects
        self.effort = effort
        self.moved = moved
        self.crcs: dict[int, list[int]] = {}
        self.error: BaseException | None = None
        self._progress = progress
        self._lock = threading.Lock()
        self._next = 0
        self._begun = False
        self._bytes = 0
        self._total = sum(planned.size for planned in objects)

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
        if first and self._progress is not None:
            self._progress("first-byte", 0, self._total)

    def done(self, index: int, crcs: list[int]) -> None:
        with self._lock:
            self.crcs[index] = crcs
            self._bytes += self.objects[index].size
            done = self._bytes
        if self._progress is not None:
            self._progress("written" if done == self._total else "writing", done, self._total)

    def fail(self, error: BaseException) -> None:
        with self._lock:
            if self.error is None:
                self.error = error


def _tensors(
    items: Sequence[Item], objects: Sequence[PlannedObject], crcs: dict[int, list[int]]
) -> tuple[TensorEntry, ...]:
    chunks: list[list[Chunk]] = [[] for _ in items]
    for index, planned in enumerate(objects):
        for piece, crc in zip(planned.pieces, crcs[index], strict=True):
            chunks[piece.item].append(Chunk(piece.offsets, piece.sizes, index, piece.start, piece.end, crc))
    return tuple(
        TensorEntry(item.name, item.dtype, item.sizes, tuple(sorted(held)))
        for item, held in zip(items, chunks, strict=True)
    )
