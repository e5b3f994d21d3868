"""State into objects: planned once, put together in reused frames, one plain put each, from some threads.

At the notice only bytes move. The plan, headers included, stays for as long as names, dtypes and shapes do: `rehearse`
makes it, or else the first save. Threads and frames are there since `warm`. Nothing is collective, and no wait outlives
the save's own deadline: a thread that hangs in the store is left behind with its frame.

Near a deadline a put that lags behind its peers is sent a second time, by a thread that has nothing else to do, from a
copy of its own: whichever arrives first counts, and both are the same bytes under the same key.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from ....providers.errors import CheckpointError, SpotguardError
from ....providers.stores.base import BlobStore
from ...checkpoint.format.crc import combine, crc32
from ...checkpoint.format.dtypes import torch_dtype
from ...checkpoint.format.keys import CheckpointName, checkpoint_prefix, object_name
from ...state.tensor_item import StateTensor, Tier
from ..cancel_scope import Abandoned, CancelScope, retry
from ..plan.bin_packing import PlannedObject
from ..plan.partitioner import ALL_STAY, RankRoles, share_of
from ..plan.throughput import StoreLink, UploadWidth
from ..plan.write_plan import (
    ALL,
    StoredObject,
    WritePlan,
    WritePlanCache,
    WriteProgress,
    WrittenState,
    is_moment,
)
from .buffers import HostBuffer, box
from .recheck import look_again
from .transfer import ObjectInFlight, Progress, StoreRequest, Superseded, Transfer, TransferHandle
from .workers import Task, UploadWorker, WorkerPool

log = logging.getLogger("spotguard")

#: Seconds that opening a connection beforehand may take.
_WARMING = 5.0
#: Pieces up to which an object's CRC is put together from theirs; above it is taken of the bytes, which costs less.
_COMBINED = 64
#: Bytes a second that one thread copies and takes the CRC of, before it was measured; and how many of them measure it.
_READ, _TELLING = 1e9, 2**24

#: Puts the bytes of an object, by its number, into a frame; the CRCs of its pieces.
Fill = Callable[[int, HostBuffer], list[int]]


class StateChanged(SpotguardError):
    """The state moved while it was read; the message says what."""


class ShardWriter:
    """Writes one rank's share of checkpoints into one store. Used by one thread; it keeps threads of its own.

    Args:
        crew: another writer's, where the two never write at the same time.
    """

    def __init__(
        self, store: BlobStore, run_id: str, rank: int = 0, world: int = 1, crew: WorkerPool | None = None
    ) -> None:
        self.store = store
        self._run_id = run_id
        self._rank = rank
        self._world = world
        self._crew = crew if crew is not None else WorkerPool(self._keep_warm)
        #: For what is no object: a manifest does not wait for the puts that it comes after or between.
        self._clerk = WorkerPool(self._keep_warm)
        self._width = UploadWidth(store.parallel)
        self._cold = ""
        self._outlines = WritePlanCache(rank, world, self._object_size)
        #: Bytes a second of a second look.
        self._read = _READ
        #: What the link does.
        self.link = StoreLink()

    def warm(self, nbytes: int) -> None:
        """Have the threads and frames that a state of `nbytes` needs, every page touched.

        Raises:
            CheckpointError: there is no memory, or no thread to be had.
        """
        size = self._object_size(nbytes)
        self._hands(-(-nbytes // size) + 1, size)  # headers, and what does not fit side by side
        self._clerk.ready(1, 1)

    def rehearse(self, leaves: Sequence[StateTensor], *, lossy: bool = False) -> None:
        """Plan for these leaves and make what a save of them needs, so that the save itself only moves bytes."""
        outline = self.outline(leaves, renew=True)
        if lossy:
            self.rounded(leaves)
        self.prepare(outline)

    def prepare(self, outline: WritePlan) -> None:
        """Make what the next save of it needs, where the last one has shown that other threads are worth having."""
        self._hands(len(outline.objects), outline.size)

    def close(self) -> None:
        """Let the threads end."""
        self._crew.dismiss()
        self._clerk.dismiss()

    def write(
        self,
        leaves: Sequence[StateTensor],
        name: CheckpointName,
        effort: CancelScope,
        progress: Progress | None = None,
        moved: Callable[[], str] = str,
        *,
        draft: WriteProgress | None = None,
        tiers: Sequence[Tier] = ALL,
        fill: Fill | None = None,
    ) -> WrittenState:
        """Put what is missing of these tiers into the store under `name`. Returns when all of it is durable there.

        Args:
            moved: asked after each object's bytes were read: nothing, or what has moved since the boundary.
            draft: what was put before, by a part of this save; what lands is noted in it, also when this raises.
            fill: where the bytes come from, if not from the leaves.

        Raises:
            Spoiled: `moved` said so; what was read is not to be kept.
            Abandoned: the deadline passed, or the save was called off; at once, whatever the store does.
            StoreError: the store refuses, or failed for longer than the save may go on.
            CheckpointError: there is no memory, or no thread to be had.
        """
        draft = draft if draft is not None else WriteProgress(self.outline(leaves))
        self.start(leaves, name, effort, progress, moved, draft=draft, tiers=tiers, fill=fill).wait()
        return draft.written(name, tiers)

    def start(
        self,
        leaves: Sequence[StateTensor],
        name: CheckpointName,
        effort: CancelScope,
        progress: Progress | None = None,
        moved: Callable[[], str] = str,
        *,
        draft: WriteProgress,
        tiers: Sequence[Tier] = ALL,
        fill: Fill | None = None,
    ) -> TransferHandle:
        """As `write`, which waits: begin to put what is missing."""
        missing = draft.anew(tiers)
        nbytes = sum(draft.outline.objects[index].size for index in missing)
        hands = self._hands(len(missing), draft.outline.size, effort)[: len(missing)]
        work = Transfer(draft, missing, name, len(hands), effort, progress, moved, self.link)
        self.link.begin(effort.now())
        work.devices = {leaf.tensor.device for leaf in leaves}
        task = partial(self._run, work, fill or partial(self._fill, work, leaves))
        for hand in hands:
            hand.give(task, work.ended)
        return TransferHandle(work, self._width if len(hands) == self._width.count else None, nbytes)

    def committed(self, draft: WriteProgress) -> None:
        """It is whole in the store: later saves of this attempt may refer to what nobody trains."""
        self._outlines.committed(draft)

    def referred(self) -> Mapping[CheckpointName, frozenset[str]]:
        """The objects that the next save would refer to, by the checkpoint in whose folder they lie."""
        return self._outlines.referred()

    def forget(self) -> None:
        """Another attempt begins, whose first checkpoint is full."""
        self._outlines.forget()

    def beside(self, store: BlobStore) -> ShardWriter:
        """One for another store, with the same threads and frames: the two never write at the same time."""
        return ShardWriter(store, self._run_id, self._rank, self._world, self._crew)

    def adopt(self, outline: WritePlan) -> None:
        """Plan as another writer does: its objects have the same names and bytes."""
        self._outlines.adopt(outline)

    def known(self, outline: WritePlan) -> frozenset[int]:
        """The objects that are most likely referred to, and not put."""
        return self._outlines.known(outline)

    def unchanged_bytes(self, outline: WritePlan) -> int:
        """Of those, the bytes."""
        return sum(outline.objects[index].size for index in self.known(outline))

    def ask(
        self,
        what: Callable[[float | None], object],
        effort: CancelScope,
        *,
        again: bool = True,
        hands: int = 1,
    ) -> float:
        """Ask the store for something else than an object, on one of the threads: one that hangs is left behind. Returns
        the seconds of the answer; those for which the store was away are not among them.

        Args:
            what: called with the seconds that are left.
            again: while it only fails for now, as an object is.
            hands: so many threads do it at once, or as many as there are.

        Raises:
            Abandoned: as `write`; whether it is done after all, nobody knows.
            StoreError: as `write`.
            CheckpointError: there is no thread to be had.
        """
        took: list[float] = []

        def task(frame: HostBuffer) -> None:
            try:
                if again:
                    took.append(retry(effort, what, errand.hear))
                else:
                    began = effort.now()
                    what(effort.left())
                    took.append(effort.now() - began)
            except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
                errand.fail(error)

        try:
            clerks = self._clerk.ready(hands, 1, effort.left())
        except (RuntimeError, MemoryError) as error:
            raise CheckpointError(f"a save needs a thread: {error}") from error
        errand = StoreRequest(len(clerks), effort)
        _give(clerks, task, errand)
        return max(took, default=0.0)

    def unchanged(self, leaves: Sequence[StateTensor], written: WrittenState, effort: CancelScope) -> str:
        """Read what anybody may have changed a second time; "" or the name of a tensor that differs by now.

        Not what was as an earlier checkpoint has it: those are the bytes of a boundary, and no mix, whatever became of it after it
        was read.
        """
        live = {leaf.name: leaf for leaf in leaves if not leaf.still and leaf.name not in written.as_before}
        again = [(entry, chunk) for entry in written.tensors if entry.name in live for chunk in entry.chunks]
        if not again:
            return ""
        # The clerk's: the others' may be on their way with what follows.
        frame = self._clerk.ready(1, max(chunk.end - chunk.start for _, chunk in again))[0].frame
        began, nbytes = effort.now(), 0
        for entry, chunk in again:
            effort.check()
            nbytes += chunk.end - chunk.start
            leaf, corner = live[entry.name], chunk.offsets
            if leaf.offsets is not None:
                corner = tuple(at - base for at, base in zip(corner, leaf.offsets, strict=True))
            source = box(leaf.tensor, corner, chunk.sizes)
            dtype = torch_dtype(entry.stored) if entry.stored else None
            if frame.copy_in(source, 0, dtype) != chunk.crc32:
                return entry.name
        if nbytes >= _TELLING and (seconds := effort.now() - began) > 0:
            self._read = nbytes / seconds
        return ""

    def second_look(
        self, leaves: Sequence[StateTensor], outline: WritePlan, roles: RankRoles = ALL_STAY
    ) -> float:
        """Seconds that `unchanged` will most likely take."""
        mine = share_of(outline.objects, outline.rank, roles)
        spared = self.known(outline).issuperset(mine.intersection(outline.indices_of(Tier.FROZEN)))
        return (
            sum(
                [
                    piece.end - piece.start
                    for index in mine
                    if not (spared and outline.objects[index].tier is Tier.FROZEN)
                    for piece in outline.objects[index].pieces
                    if not leaves[piece.item].still
                ]
            )
            / self._read
        )

    def outline(self, leaves: Sequence[StateTensor], *, renew: bool = False) -> WritePlan:
        """The plan for these leaves, the one that is there if it still holds.

        Args:
            renew: make it anew where objects of another size are better by now: not when a notice waits, and not when
                there are objects that a save may refer to, for those are of this size.
        """
        return self._outlines.of(leaves, renew=renew)

    def rounded(self, leaves: Sequence[StateTensor]) -> WritePlan:
        """The same plan but for moments, which are rounded to bfloat16: a save may change over before it begins with
        them."""
        return self._outlines.rounded(leaves)

    def apart(self, leaves: Sequence[StateTensor], *, rounded: bool = False) -> WritePlan:
        """The plan of a rank that relies on no other, for roles that say so: what several hold is cut alike by all of them,
        however else their states differ."""
        return self._outlines.apart(leaves, rounded=rounded)

    def _hands(self, objects: int, size: int, effort: CancelScope | None = None) -> list[UploadWorker]:
        """As many as so many objects of at most `size` keep busy."""
        left = None if effort is None else effort.left()
        try:
            return self._crew.ready(max(1, min(self._width.count, objects)), size, left)
        except (RuntimeError, MemoryError) as error:
            raise CheckpointError(f"a save needs buffers of {size >> 20} MiB and threads: {error}") from error

    def _object_size(self, nbytes: int) -> int:
        """Whole MiB, so that a state that grows by a few bytes still fits the frames it has."""
        return min(self._width.object_bytes, (nbytes // 2**20 + 2) * 2**20)

    # --- one of its threads ---

    def _keep_warm(self) -> None:
        try:
            self.store.warm(timeout=_WARMING)
            self._cold = ""
        except SpotguardError as error:
            # Said once: every thread meets the same, every few seconds. The save itself will say it again, and louder.
            said, self._cold = self._cold, str(error)
            if not said:
                log.warning("the store cannot be reached, a save would fail now: %s", error)

    def _run(self, work: Transfer, fill: Fill, frame: HostBuffer) -> None:
        try:
            while True:
                if doubted := work.doubted():
                    look_again(self.store, self._run_id, work, doubted)
                elif (index := work.next()) is not None:
                    self._begin(work, fill, frame, index)
                elif (flight := work.laggard()) is not None:
                    self._send_again(work, frame, flight)
                elif not work.more():
                    return
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits; the others stop
            work.fail(error)

    def _begin(self, work: Transfer, fill: Fill, frame: HostBuffer, index: int) -> None:
        planned = work.draft.outline.objects[index]
        crcs = fill(index, frame)
        with frame.aside(work.devices):
            why = work.moved()
        if why:
            raise StateChanged(why)
        data = frame.view(0, planned.size)
        landed = StoredObject(crcs, work.name)
        if planned.tier is Tier.FROZEN:
            landed.digest = hashlib.sha256(data).digest()
            if (known := self._outlines.as_before(index, landed)) is not None:
                work.spare(index, known)
                return
        self._put(work, work.starts(index, data, _whole_crc(planned, crcs, data), landed), data)

    def _send_again(self, work: Transfer, frame: HostBuffer, flight: ObjectInFlight) -> None:
        copied = frame.view(0, len(flight.data))
        copied[:] = flight.data
        # The other may have been faster, and its frame be in use again: then this is of no more use.
        if crc32(copied) == flight.crc32:
            log.debug("object %d lags behind, it is sent again", flight.index)
            self._put(work, flight.double(copied, work.effort.now()), copied)

    def _fill(
        self, work: Transfer, leaves: Sequence[StateTensor], index: int, frame: HostBuffer
    ) -> list[int]:
        """Put an object together; the CRCs of its pieces."""
        planned, rounded = work.draft.outline.objects[index], work.draft.outline.rounded
        frame.write(0, planned.header)
        crcs = []
        for piece in planned.pieces:
            work.effort.check()
            leaf = leaves[piece.item]
            source = leaf.tensor
            if piece.sizes != source.shape:
                source = box(source, piece.local, piece.sizes)
            dtype = torch.bfloat16 if rounded and is_moment(leaf) else None
            crcs.append(frame.copy_in(source, piece.start, dtype))
        return crcs

    def _put(self, work: Transfer, flight: ObjectInFlight, data: memoryview) -> None:
        key = checkpoint_prefix(self._run_id, work.name) + object_name(self._rank, self._world, flight.index)

        def put(left: float | None) -> None:
            work.again(flight)
            try:
                self.store.put(key, data, timeout=left, crc32=flight.crc32, sent=partial(work.sent, flight))
            finally:
                work.back()

        try:
            retry(work.effort, put, work.hear)
        except Superseded:
            work.dropped(flight)
            return
        work.done(flight)


def _give(hands: Sequence[UploadWorker], task: Task, work: StoreRequest) -> None:
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
        return crc32(data)
    sizes = [piece.end - piece.start for piece in planned.pieces]
    return combine([(crc32(planned.header), len(planned.header)), *zip(crcs, sizes, strict=True)])
