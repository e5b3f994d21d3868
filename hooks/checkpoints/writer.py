"""State into objects: planned once, put together in reused frames, one plain put each, from some threads.

At the notice only bytes move. The plan, headers included, stays for as long as names, dtypes and shapes do: `rehearse`
makes it, or else the first save. Threads and frames are there since `warm`. Nothing is collective, and no wait outlives
the save's own deadline: a thread that hangs in the store is left behind with its frame.

Near a deadline a put that lags behind its peers is sent a second time, by a thread that has nothing else to do, from a
copy of its own: whichever arrives first counts, and both are the same bytes under the same key.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ...providers.errors import CheckpointError, CorruptError, SpotguardError, StoreError
from ...providers.stores.store import BlobStore
from ..format.chunks import Item, PlannedObject, plan
from ..format.crc import combine
from ..format.dtypes import dtype_name
from ..format.keys import CheckpointName, checkpoint_prefix, object_name
from ..format.leaf import Leaf
from ..format.manifest import Chunk, ObjectEntry, TensorEntry
from .crew import Crew, Hand, Task
from .effort import Abandoned, Effort
from .frames import Frame, box
from .width import Width
from .work import Flight, Progress, Superseded, Work

log = logging.getLogger("spotguard")

#: Seconds that opening a connection beforehand may take.
_WARMING = 5.0
#: Pieces up to which an object's CRC is put together from theirs; above it is taken of the bytes, which costs less.
_COMBINED = 64
#: Tries of an object whose bytes the store says are not the ones that were sent.
_CORRUPT_TRIES = 3
#: Seconds before a put that failed for a while is tried again: doubled each time up to the second number.
_RETRY_FIRST, _RETRY_MOST = 0.1, 2.0


class Spoiled(SpotguardError):
    """The state moved while it was read; the message says what."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a manifest says about the bytes."""

    objects: tuple[ObjectEntry, ...]
    tensors: tuple[TensorEntry, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a state of these names, dtypes and shapes is written as."""

    shapes: list[tuple[str, torch.dtype, torch.Size]]
    items: tuple[Item, ...]
    objects: tuple[PlannedObject, ...]
    entries: tuple[ObjectEntry, ...]
    nbytes: int
    #: Of the frames that its objects fit into.
    size: int


class Writer:
    """Writes one rank's share of checkpoints into one store. Used by one thread; it keeps threads of its own."""

    def __init__(self, store: BlobStore, run_id: str, rank: int = 0, world: int = 1) -> None:
        self._store = store
        self._run_id = run_id
        self._rank = rank
        self._world = world
        self._crew = Crew(self._keep_warm)
        self._width = Width(store.parallel)
        self._cold = ""
        self._plan: _Plan | None = None

    def warm(self, nbytes: int) -> None:
        """Have the threads and frames that a state of `nbytes` needs, every page touched.

        Raises:
            CheckpointError: there is no memory, or no thread to be had.
        """
        self._hands(nbytes, self._object_size(nbytes))

    def rehearse(self, leaves: Sequence[Leaf]) -> None:
        """Plan for these leaves and make what a save of them needs, so that the save itself only moves bytes."""
        planned = self._planned(leaves)
        self._hands(planned.nbytes, planned.size)

    def close(self) -> None:
        """Let the threads end."""
        self._crew.dismiss()

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
            Abandoned: the deadline passed, or the save was called off; at once, whatever the store does.
            StoreError: the store refuses, or failed for longer than the save may go on.
            CheckpointError: there is no memory, or no thread to be had.
        """
        planned = self._planned(leaves)
        hands = self._hands(planned.nbytes, planned.size)[: len(planned.objects)]
        work = Work(planned.objects, len(hands), effort, progress, moved)
        began = effort.now()
        _give(hands, partial(self._run, work, leaves, name), work)
        effort.check()
        if len(hands) == self._width.count:
            self._width.learn(planned.nbytes, effort.now() - began)
        return Written(planned.entries, _tensors(planned, work.crcs))

    def ask(self, what: Callable[[float | None], object], effort: Effort, *, again: bool = True) -> None:
        """Ask the store for something else than an object, on one of the threads: one that hangs is left behind.

        Args:
            what: called with the seconds that are left.
            again: while it only fails for now, as an object is.

        Raises:
            Abandoned: as `write`; whether it is done after all, nobody knows.
            StoreError: as `write`.
        """
        work = Work((), 1, effort, None, str)

        def task(frame: Frame) -> None:
            try:
                if again:
                    retry(effort, what, work.hear)
                else:
                    what(effort.left())
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
                work.fail(error)

        _give(self._hands(0, 1)[:1], task, work)

    def unchanged(self, leaves: Sequence[Leaf], written: Written, effort: Effort) -> str:
        """Read what anybody may have changed a second time; "" or the name of a tensor that differs by now."""
        frame = None
        for leaf, entry in zip(leaves, written.tensors, strict=True):
            if leaf.still:
                continue
            for chunk in entry.chunks:
                effort.check()
                if frame is None:
                    frame = self._hands(0, chunk.end - chunk.start)[0].frame
                again = frame.copy_in(box(leaf.tensor, chunk.offsets, chunk.sizes), 0)
                if again != chunk.crc32:
                    return leaf.name
        return ""

    def _planned(self, leaves: Sequence[Leaf]) -> _Plan:
        shapes = [(leaf.name, leaf.tensor.dtype, leaf.tensor.shape) for leaf in leaves]
        if self._plan is None or self._plan.shapes != shapes:
            items = tuple([Item(name, dtype_name(dtype), tuple(shape)) for name, dtype, shape in shapes])
            nbytes = sum([leaf.tensor.nbytes for leaf in leaves])
            size = self._object_size(nbytes)
            objects = plan(items, size)
            self._plan = _Plan(shapes, items, objects, self._entries(objects), nbytes, size)
        return self._plan

    def _hands(self, nbytes: int, size: int) -> list[Hand]:
        wanted = max(1, min(self._width.count, -(-nbytes // size)))
        try:
            return self._crew.ready(wanted, size)
        except (RuntimeError, MemoryError) as error:
            raise CheckpointError(f"a save needs buffers of {size >> 20} MiB and threads: {error}") from error

    def _entries(self, objects: Sequence[PlannedObject]) -> tuple[ObjectEntry, ...]:
        return tuple(
            ObjectEntry(
                name=object_name(self._rank, self._world, index),
                size=planned.size,
                header=len(planned.header),
                header_crc32=zlib.crc32(planned.header),
            )
            for index, planned in enumerate(objects)
        )

    def _object_size(self, nbytes: int) -> int:
        """Whole MiB, so that a state that grows by a few bytes still fits the frames it has."""
        return min(self._width.object_bytes, (nbytes // 2**20 + 2) * 2**20)

    # --- one of its threads ---

    def _keep_warm(self) -> None:
        try:
            self._store.warm(timeout=_WARMING)
            self._cold = ""
        except SpotguardError as error:
            # Said once: every thread meets the same, every few seconds. The save itself will say it again, and louder.
            said, self._cold = self._cold, str(error)
            if not said:
                log.warning("the store cannot be reached, a save would fail now: %s", error)

    def _run(self, work: Work, leaves: Sequence[Leaf], name: CheckpointName, frame: Frame) -> None:
        try:
            while (index := work.next()) is not None:
                planned = work.objects[index]
                frame.write(0, planned.header)
                crcs = []
                for piece in planned.pieces:
                    work.effort.check()
                    source = leaves[piece.item].tensor
                    if piece.sizes != source.shape:
                        source = box(source, piece.local, piece.sizes)
                    crcs.append(frame.copy_in(source, piece.start))
                if why := work.moved():
                    raise Spoiled(why)
                data = frame.view(0, planned.size)
                self._put(name, work.starts(index, data, _whole_crc(planned, crcs, data), crcs), data, work)
            while (flight := work.laggard()) is not None:
                copied = frame.view(0, len(flight.data))
                copied[:] = flight.data
                # The other may have been faster, and its frame be in use again: then this is of no more use.
                if zlib.crc32(copied) == flight.crc32:
                    log.debug("object %d lags behind, it is sent again", flight.index)
                    double = Flight(flight.index, copied, flight.crc32, flight.crcs, work.effort.now())
                    self._put(name, double, copied, work)
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits; the others stop
            work.fail(error)

    def _put(self, name: CheckpointName, flight: Flight, data: memoryview, work: Work) -> None:
        key = checkpoint_prefix(self._run_id, name) + object_name(self._rank, self._world, flight.index)
        sent = partial(work.sent, flight)

        def put(left: float | None) -> None:
            work.again(flight)
            try:
                self._store.put(key, data, timeout=left, crc32=flight.crc32, sent=sent)
            finally:
                work.back()

        try:
            retry(work.effort, put, work.hear)
        except Superseded:
            return
        work.done(flight)


def _give(hands: Sequence[Hand], task: Task, work: Work) -> None:
    """Have these hands do it, and wait for them no longer than the save may go on."""
    for hand in hands:
        hand.give(task, work.ended)
    try:
        work.effort.wait(work.over, work.changed)
    except Abandoned as why:
        work.call_off(why)
    if work.error is not None:
        raise work.error


def _whole_crc(planned: PlannedObject, crcs: Sequence[int], data: memoryview) -> int:
    if len(crcs) > _COMBINED:
        return zlib.crc32(data)
    sizes = [piece.end - piece.start for piece in planned.pieces]
    return combine([(zlib.crc32(planned.header), len(planned.header)), *zip(crcs, sizes, strict=True)])


def retry(
    effort: Effort,
    ask: Callable[[float | None], object],
    hear: Callable[[StoreError], None] = lambda error: None,
) -> None:
    """Ask a store, again and again while it only fails for now and the save may go on.

    Args:
        ask: called with the seconds that are left.
        hear: called with each failure for now.
    """
    pause, tries = _RETRY_FIRST, _CORRUPT_TRIES
    effort.check()
    while True:
        try:
            ask(effort.left())
            return
        except StoreError as error:
            tries -= isinstance(error, CorruptError)  # on its way, as far as anybody can tell
            if not (error.transient or (isinstance(error, CorruptError) and tries)):
                raise
            last = error
        hear(last)
        try:
            effort.pause(pause)
        except Abandoned as why:
            raise Abandoned(f"{why}; the store said last: {last}") from last
        pause = min(2 * pause, _RETRY_MOST)


def _tensors(planned: _Plan, crcs: dict[int, list[int]]) -> tuple[TensorEntry, ...]:
    chunks: list[list[Chunk]] = [[] for _ in planned.items]
    for index, each in enumerate(planned.objects):
        for piece, crc in zip(each.pieces, crcs[index], strict=True):
            chunks[piece.item].append(Chunk(piece.offsets, piece.sizes, index, piece.start, piece.end, crc))
    return tuple(
        TensorEntry(item.name, item.dtype, item.sizes, tuple(sorted(held)))
        for item, held in zip(planned.items, chunks, strict=True)
    )
