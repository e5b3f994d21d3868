"""Writing one rank's state as objects: planned once, copied into host buffers, and handed to the uploader.

At the notice only bytes move. The plan, headers included, holds until a name, dtype or shape changes. `rehearse` makes it, or
else the first save does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import torch

from ...providers.stores.base import BlobStore
from ..checkpoint.format.dtypes import torch_dtype
from ..checkpoint.format.keys import CheckpointName
from ..checkpoint.tier import Tier
from ..commit.cancel_scope import CancelScope
from ..commit.plan.partitioner import ALL_STAY, RankRoles, share_of
from ..commit.plan.plan_cache import WritePlanCache
from ..commit.plan.write_plan import ALL, WEIGHTS, WritePlan, WriteProgress, WrittenState
from ..commit.upload.object_in_flight import Progress
from ..commit.upload.save_queue import SaveQueue
from ..commit.upload.transfer import Fill, Transfer
from ..commit.upload.uploader import Uploader
from ..commit.upload.workers import WorkerPool
from ..state.device.host_buffer import HostBuffer, box
from ..state.state_tensor import StateTensor
from .request import SaveCost

#: `_READ`: bytes a second that one thread copies and checksums, until a save has measured it. `_TELLING`: bytes that a
#: measurement needs.
_READ, _TELLING = 1e9, 2**24


class ShardWriter:
    """Writes one rank's share of checkpoints into one store. One thread uses it.

    Args:
        pool: another writer's workers, if the two never write at the same time.
    """

    def __init__(
        self,
        store: BlobStore,
        run_id: str,
        rank: int = 0,
        world: int = 1,
        pool: WorkerPool[HostBuffer] | None = None,
    ) -> None:
        self._run_id = run_id
        self._rank = rank
        self._world = world
        self.uploads = Uploader(store, run_id, world, HostBuffer, pool)
        #: The plans that this writer follows, and their objects that are in the store.
        self.plans = WritePlanCache(rank, world, self.uploads.object_size)
        #: Bytes a second of `unchanged`, which reads a second time.
        self._read = _READ

    def close(self) -> None:
        """End the threads."""
        self.uploads.close()

    def rehearse(self, state_tensors: Sequence[StateTensor], *, lossy: bool = False) -> None:
        """Make the plan for these tensors, and the workers and buffers for it, so that the save itself only moves bytes."""
        write_plan = self.plans.of(state_tensors, renew=True)
        if lossy:
            self.plans.rounded(state_tensors)
        self.prepare(write_plan)

    def prepare(self, write_plan: WritePlan) -> None:
        """Make the workers that the next save of this plan needs, if the last save has shown that more are worth having."""
        self.uploads.workers(len(write_plan.objects), write_plan.size)

    def write(
        self,
        state_tensors: Sequence[StateTensor],
        name: CheckpointName,
        scope: CancelScope,
        progress: Progress | None = None,
        moved: Callable[[], str] = str,
        *,
        write_progress: WriteProgress | None = None,
        tiers: Sequence[Tier] = ALL,
        fill: Fill[HostBuffer] | None = None,
    ) -> WrittenState:
        """Put the missing objects of these tiers into the store under `name`. Return when all of them are durable there.

        Args:
            moved: called after each object's bytes were read. It returns "" or what has moved since the boundary.
            write_progress: the objects that an earlier part of this save has put. `write` notes each new object in it, even if it raises.
            fill: reads the bytes of an object, if they do not come from the tensors.

        Raises:
            StateChanged: `moved` reports a change. The bytes that were read must not be kept.
            Abandoned: the deadline passed, or the save was called off. This is raised at once, even if the store hangs.
            StoreError: the store refuses, or failed for longer than the save may go on.
            CheckpointError: no memory or no thread is left.
        """
        write_progress = (
            write_progress if write_progress is not None else WriteProgress(self.plans.of(state_tensors))
        )
        queue = self.queue(
            state_tensors, name, scope, progress, moved, write_progress=write_progress, fill=fill
        )
        queue.objects(tiers)
        queue.wait(queue.whole)
        return queue.written(name, tiers)

    def queue(
        self,
        state_tensors: Sequence[StateTensor],
        name: CheckpointName,
        scope: CancelScope,
        progress: Progress | None = None,
        moved: Callable[[], str] = str,
        *,
        write_progress: WriteProgress,
        fill: Fill[HostBuffer] | None = None,
    ) -> SaveQueue[HostBuffer]:
        """Return the queue of a save. The arguments are those of `write`."""
        fill = fill or partial(_fill, write_progress, scope, state_tensors)
        aside = partial(_moved_aside, moved, {state_tensor.tensor.device for state_tensor in state_tensors})
        return SaveQueue(
            Transfer(self.uploads, write_progress, name, scope, fill, aside, self.plans, progress)
        )

    def requests(self, scope: CancelScope) -> SaveQueue[HostBuffer]:
        """Return the queue of a save whose objects are in the store."""
        nothing = WriteProgress(WritePlan((), (), (), 0, self._rank, self._world))
        return self.queue((), CheckpointName(0, 0, 0), scope, write_progress=nothing)

    def beside(self, store: BlobStore) -> ShardWriter:
        """Return a writer for another store that shares the workers: the two must never write at the same time."""
        return ShardWriter(store, self._run_id, self._rank, self._world, self.uploads.pool)

    def unchanged_bytes(self, write_plan: WritePlan) -> int:
        """Return the bytes of the objects that a save most likely refers to instead of putting them again."""
        return sum(write_plan.objects[index].size for index in self.plans.known(write_plan))

    def cost(self, write_plan: WritePlan | None, roles: RankRoles, nbytes: int, now: float) -> SaveCost:
        """Return what this rank would write of a save with these roles; all `nbytes` if no save is planned yet."""
        rate, commit = self.uploads.link.rate(now), self.uploads.link.commit or 0.0
        weights, moments = nbytes, 0
        if write_plan is not None:
            write_progress = WriteProgress(write_plan, roles=roles)
            weights = write_progress.share(WEIGHTS)
            moments = write_progress.share() - weights
        return SaveCost(weights, moments, None if rate is None else rate.expected, commit)

    def unchanged(
        self, state_tensors: Sequence[StateTensor], written: WrittenState, scope: CancelScope
    ) -> str:
        """Read the tensors that may have changed a second time. Return the name of one that differs now, or "".

        Tensors that equal an earlier checkpoint are not read again. Their written bytes are those of a boundary and no mix, even
        if the tensor changed after it was read.
        """
        live = {
            state_tensor.name: state_tensor
            for state_tensor in state_tensors
            if not state_tensor.still and state_tensor.name not in written.as_before
        }
        again = [(entry, chunk) for entry in written.tensors if entry.name in live for chunk in entry.chunks]
        if not again:
            return ""
        # A buffer of `request_pool`: the workers' buffers may hold the objects that are being put next.
        buffer = self.uploads.request_pool.ready(1, max(chunk.end - chunk.start for _, chunk in again))[
            0
        ].buffer
        began, nbytes = scope.now(), 0
        for entry, chunk in again:
            scope.check()
            nbytes += chunk.end - chunk.start
            state_tensor, corner = live[entry.name], chunk.offsets
            if state_tensor.offsets is not None:
                corner = tuple(at - base for at, base in zip(corner, state_tensor.offsets, strict=True))
            source = box(state_tensor.tensor, corner, chunk.sizes)
            dtype = torch_dtype(entry.stored) if entry.stored else None
            if buffer.copy_in(source, 0, dtype) != chunk.crc32:
                return entry.name
        if nbytes >= _TELLING and (seconds := scope.now() - began) > 0:
            self._read = nbytes / seconds
        return ""

    def second_look(self, state_tensors: Sequence[StateTensor], write_plan: WritePlan) -> float:
        """Return the seconds that `unchanged` will most likely take."""
        mine = share_of(write_plan.objects, write_plan.rank, ALL_STAY)
        frozen = mine.intersection(write_plan.indices_of(Tier.FROZEN))
        spared = frozen if self.plans.known(write_plan).issuperset(frozen) else frozenset[int]()
        pieces = (piece for index in mine - spared for piece in write_plan.objects[index].pieces)
        return (
            sum(piece.end - piece.start for piece in pieces if not state_tensors[piece.item].still)
            / self._read
        )


def _fill(
    write_progress: WriteProgress,
    scope: CancelScope,
    state_tensors: Sequence[StateTensor],
    index: int,
    buffer: HostBuffer,
) -> list[int]:
    """Assemble an object in the buffer from the tensors. Return the CRCs of its pieces."""
    write_plan = write_progress.write_plan  # a budget may choose another one between two parts
    planned = write_plan.objects[index]
    buffer.write(0, planned.header)
    crcs = []
    for piece in planned.pieces:
        scope.check()
        state_tensor = state_tensors[piece.item]
        source = state_tensor.tensor
        if piece.sizes != source.shape:
            source = box(source, piece.local, piece.sizes)
        stored = write_plan.items[piece.item].dtype
        dtype = torch_dtype(stored) if stored != write_plan.forms[piece.item].dtype else None
        crcs.append(buffer.copy_in(source, piece.start, dtype))
    return crcs


def _moved_aside(moved: Callable[[], str], devices: Collection[torch.device], buffer: HostBuffer) -> str:
    """Call `moved` on the buffer's own streams, so that it does not wait for training's kernels."""
    with buffer.aside(devices):
        return moved()
