"""The local copy of the state for a background checkpoint: on the stage, a disk of this machine, or else in host memory.

`StageWriter` writes the checkpoint onto the stage, straight from the tensors. So it needs no copy in host memory, and the gate
is shut while the disk writes. Then the workers read the objects back into their own buffers and put them under the same names.
They check each byte on the way against the CRCs of the first write.

`Snapshot` copies the state to host memory, from which a background checkpoint is written while training goes on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from ...providers.errors import CheckpointError, CorruptError, SpotguardError, StoreError
from ...providers.stores.base import BlobStore
from ..checkpoint.format.crc import crc32
from ..checkpoint.format.dtypes import torch_dtype
from ..checkpoint.format.keys import CheckpointName, checkpoint_prefix, object_name, parse_object_name
from ..checkpoint.format.manifest import RankManifest
from ..checkpoint.local_stage import Stage
from ..state.device import SideStreams, host_memory
from ..state.host_buffer import HostBuffer
from ..state.memory_access import available_memory, copyable
from ..state.tensor_item import StateTensor
from .cancel_scope import Abandoned, CancelScope
from .plan.bin_packing import PlannedChunk, PlannedObject, PlannedTensor
from .plan.partitioner import ALL_STAY, RankRoles
from .plan.write_plan import StoredObject, TensorForm, WritePlan, WriteProgress, WrittenState
from .shard_writer import ShardWriter
from .upload.uploader import Fill, StateChanged

log = logging.getLogger("spotguard")

#: Limits of a staging, as training stands still meanwhile: seconds in addition to those for its bytes, and the bytes a second
#: below which a disk does not help (one connection to a store carries 50 to 95 MB/s).
_PATIENCE, _SLOWEST = 5.0, 50e6


#: The placeholder of an object that this rank takes no part in.
_ANOTHERS = PlannedObject(b"", (), 0, holders=(-1,))


@dataclass(frozen=True, slots=True)
class StagedSave:
    """A checkpoint on the stage, under the name that it will have in the store."""

    name: CheckpointName
    #: Its objects on the stage, and their CRCs.
    write_progress: WriteProgress
    #: Reads the objects back.
    fill: Fill[HostBuffer]


class StageWriter:
    """Writes checkpoints onto the stage, and reads them back. The saving thread uses it.

    Args:
        writer: the writer for the store. The stage's writer shares its threads and buffers: the two never write at the same
            time.
    """

    def __init__(self, stage: Stage, writer: ShardWriter) -> None:
        self.stage = stage
        self.writer = writer.beside(stage.files)

    def hold(
        self,
        state_tensors: Sequence[StateTensor],
        write_plan: WritePlan,
        name: CheckpointName,
        scope: CancelScope,
        moved: Callable[[], str],
        commit: Callable[[WrittenState, CancelScope], None],
        roles: RankRoles = ALL_STAY,
    ) -> StagedSave | None:
        """Write a checkpoint onto the stage, with the plan of the store.

        Args:
            moved: called after each object's bytes were read. It returns "" or what has moved since the boundary.
            commit: puts the manifest through `writer`, and raises the errors of a commit.
            roles: the roles of the save, so that the stage gets only the objects that the save will put.

        Returns:
            The staged checkpoint; None if the stage cannot take it. The reason is logged.

        Raises:
            Abandoned: `scope` was called off.
            StateChanged: the state moved during the read.
        """
        write_progress = WriteProgress(write_plan, roles=roles)
        seconds = _PATIENCE + write_progress.share() / _SLOWEST
        limit = scope.part(scope.now() + seconds)
        self.writer.plans.adopt(write_plan)
        try:
            self.writer.write(state_tensors, name, limit, None, moved, write_progress=write_progress)
            commit(write_progress.written(name), limit)
        except Abandoned:
            scope.check()
            self.stage.switch_off(
                f"its disk did not write {write_progress.share() >> 20} MiB in {seconds:.0f} s"
            )
            return None
        except (StoreError, CheckpointError) as error:
            log.warning(
                "step %d is not staged, spotguard copies it to host memory instead: %s", name.step, error
            )
            self._tidy(lambda: self.stage.discard(name), limit)
            return None
        except StateChanged:
            self._tidy(lambda: self.stage.discard(name), limit)
            raise
        self.writer.plans.committed(write_progress)
        log.info("step %d is staged on this machine's disk, spotguard uploads it from there", name.step)
        return StagedSave(
            name, write_progress, self._reported(name, write_progress, self._fill(write_progress))
        )

    def in_the_store(self, name: CheckpointName, nbytes: int, scope: CancelScope) -> None:
        """Note that this checkpoint is in the store: remove older ones from the stage.

        The checkpoint itself is removed too if the stage has no room for another beside it.
        """

        def tidy() -> None:
            if self.stage.prune(name, nbytes):
                self.writer.plans.forget()

        self._tidy(tidy, scope)

    def left_behind(self, manifest: RankManifest, scope: CancelScope) -> StagedSave:
        """Return the checkpoint that another process has staged here.

        Raises:
            Abandoned: the save was called off.
            CheckpointError: this version of spotguard does not stage in that form.
            StoreError: the checkpoint cannot be read.
        """
        drafts: list[WriteProgress] = []
        self.writer.uploads.ask(
            lambda left: drafts.append(_draft_of(self.stage.files, manifest)), scope, again=False
        )
        return StagedSave(manifest.checkpoint, drafts[0], self._fill(drafts[0]))

    def _fill(self, write_progress: WriteProgress) -> Fill[HostBuffer]:
        """Return the function that reads the objects of a staged draft back, and checks their CRCs."""
        write_plan, files, run_id = write_progress.write_plan, self.stage.files, self.stage.run_id

        def fill(index: int, buffer: HostBuffer) -> list[int]:
            planned, stored = write_plan.objects[index], write_progress.stored[index]
            key = checkpoint_prefix(run_id, stored.at) + object_name(write_plan.rank, write_plan.world, index)
            data = buffer.view(0, planned.size)
            files.read_into(key, 0, data)
            crcs = [crc32(data[piece.start : piece.end]) for piece in planned.pieces]
            if crcs != stored.crcs or data[: len(planned.header)] != planned.header:
                raise CorruptError(
                    f"{key} in {files.url} differs from what spotguard wrote there: check that disk"
                )
            return crcs

        return fill

    def _reported(
        self, name: CheckpointName, write_progress: WriteProgress, fill: Fill[HostBuffer]
    ) -> Fill[HostBuffer]:
        """Return `fill` with this addition: an object that cannot be read fails this save, but not the saves after it."""

        def read(index: int, buffer: HostBuffer) -> list[int]:
            try:
                return fill(index, buffer)
            except StoreError as error:
                if write_progress.stored[index].at != name:
                    self.writer.plans.forget()  # an earlier checkpoint wrote it: the next one is staged in full
                elif not self.stage.off:
                    self.stage.switch_off(str(error))  # this save wrote it a moment ago: the disk is bad
                raise

        return read

    def _tidy(self, what: Callable[[], None], scope: CancelScope) -> None:
        try:
            # On a thread of its own: a disk that hangs delays nothing else.
            self.writer.uploads.ask(lambda left: what(), scope, again=False)
        except SpotguardError as error:
            log.debug("the stage %s stays as it is for now: %s", self.stage.folder, error)


def _draft_of(files: BlobStore, manifest: RankManifest) -> WriteProgress:
    """Return the progress of a staged checkpoint, with as much of its write plan as a copy of its objects needs.

    Raises:
        CheckpointError: an object does not have a name that this version gives.
        CorruptError: the header of an object is damaged.
    """
    pieces: dict[int, list[tuple[PlannedChunk, int]]] = {}
    shapes, items = [], []
    for item, tensor in enumerate(manifest.tensors):
        shapes.append(TensorForm(tensor.name, torch_dtype(tensor.dtype), torch.Size(tensor.shape)))
        items.append(PlannedTensor(tensor.name, tensor.stored or tensor.dtype, tensor.shape))
        for chunk in tensor.chunks:
            piece = PlannedChunk(item, (), chunk.sizes, 0, 0, chunk.offsets, chunk.start, chunk.end)
            pieces.setdefault(chunk.object, []).append((piece, chunk.crc32))
    objects: list[PlannedObject] = []
    stored = {}
    for index, entry in enumerate(manifest.objects):
        at = CheckpointName.parse(entry.checkpoint) if entry.checkpoint else manifest.checkpoint
        key, place = manifest.object_key(index), parse_object_name(entry.name)
        if (
            at is None
            or place is None
            or place[:2] != (manifest.rank, manifest.world)
            or place[2] < len(objects)
        ):
            raise CheckpointError(f"{key} in {files.url} has a name that this version does not give")
        # The number of an object is its index in the plan. Other ranks write some objects of the plan, which are not staged here.
        objects += [_ANOTHERS] * (place[2] - len(objects))
        header = bytearray(entry.header)
        files.read_into(key, 0, memoryview(header))
        if crc32(header) != entry.header_crc32:
            raise CorruptError(
                f"{key} in {files.url} is damaged: its header differs from the one that was written"
            )
        chunks = sorted(pieces.get(index, []), key=lambda each: each[0].start)
        objects.append(PlannedObject(bytes(header), tuple([piece for piece, _ in chunks]), entry.size))
        stored[place[2]] = StoredObject([crc for _, crc in chunks], at)
    largest = max((planned.size for planned in objects), default=0)
    write_plan = WritePlan(shapes, tuple(items), tuple(objects), largest, manifest.rank, manifest.world)
    return WriteProgress(write_plan, stored)


# --- the copy in host memory ---

#: Bytes that are copied between two checks whether the save may go on.
_PIECE = 64 * 2**20
#: Bytes to whose multiples the copies begin: those of a cache line.
_ALIGNED = 64
#: Seconds between two checks whether the memory is there; and for the last block, once nobody wants it any more.
_POLL, _LAST = 0.05, 2.0
#: Host memory in bytes that the copy must leave free.
_LEAVE_FREE = 512 * 2**20


class CopyBlock(NamedTuple):
    """Copies that share memory, by name. The memory stays as long as one of them is used, so they are kept or dropped together."""

    nbytes: int
    copies: dict[str, torch.Tensor]


class Snapshot:
    """The copy of the state in host memory. The saving thread uses it. It keeps its memory and reuses it.

    A thread of its own takes the memory: the driver may need seconds for it, and a notice must not wait for them.
    """

    def __init__(self) -> None:
        self._blocks: list[CopyBlock] = []
        self._streams = SideStreams()
        self.available = available_memory
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        #: The driver has pinned all memory so far.
        self._pinned = True
        self._closed = False

    def prepare(self, state_tensors: tuple[StateTensor, ...]) -> None:
        """Begin to take the memory for copies of a GPU's state. Returns at once.

        The first background checkpoint would take it while training stands still: 1.9 s for 3.6 GB (measured on an H200).
        """
        if self._thread is not None and self._thread.is_alive():
            return
        missing = self._missing(state_tensors)
        if any(each.tensor.is_cuda for each in missing):
            self._begin(state_tensors, missing)

    def take(self, state_tensors: tuple[StateTensor, ...], scope: CancelScope) -> tuple[StateTensor, ...]:
        """Copy the state tensors as they stand. Return them with their tensors in host memory.

        Raises:
            Abandoned: the save was called off.
            CheckpointError: the host memory cannot hold them.
        """
        scope.check()
        self._end(scope)
        if missing := self._missing(state_tensors):
            self._begin(state_tensors, missing)
            self._end(scope)
        if self._error is not None:
            raise self._error
        copies = {name: copy for block in self._blocks for name, copy in block.copies.items()}
        for each in state_tensors:
            with torch.no_grad(), self._streams.on(each.tensor.device):
                for into, part in _pieces(copyable(copies[each.name]), copyable(each.tensor)):
                    scope.check()
                    into.copy_(part, non_blocking=True)
        self._streams.finish()
        return tuple(replace(each, tensor=copies[each.name], still=True) for each in state_tensors)

    def close(self) -> None:
        """End the thread. The saving thread calls this after its last save.

        A thread that is in the driver when the interpreter ends would abort the process.
        """
        self._closed = True
        if self._thread is not None:
            self._thread.join(_LAST)

    def _begin(self, state_tensors: tuple[StateTensor, ...], missing: list[StateTensor]) -> None:
        self._thread = threading.Thread(
            target=self._hold, args=(state_tensors, missing), name="spotguard-memory", daemon=True
        )
        self._thread.start()

    def _end(self, scope: CancelScope) -> None:
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(_POLL)
            scope.check()

    def _hold(self, state_tensors: tuple[StateTensor, ...], missing: list[StateTensor]) -> None:
        """Take the memory for the missing copies, and let go of copies of other tensors. On the thread."""
        try:
            there = {each.name for each in state_tensors} - {each.name for each in missing}
            kept = [block for block in self._blocks if block.copies.keys() <= there]
            freed = sum(block.nbytes for block in self._blocks) - sum(block.nbytes for block in kept)
            blocks = [*_grouped(missing)]
            self._check_memory(_size(missing) - freed)
            self._blocks = kept
            for block in blocks:
                if self._closed:
                    raise Abandoned("the guard was closed")
                self._check_memory(_size(block))
                self._blocks.append(self._block(block))
            self._error = None
        except Exception as error:  # noqa: BLE001 - whoever takes a copy raises it
            self._error = error

    def _missing(self, state_tensors: tuple[StateTensor, ...]) -> list[StateTensor]:
        """Return the tensors without a copy of their form in a block that is kept."""
        wanted = {each.name: (each.tensor.shape, each.tensor.dtype) for each in state_tensors}
        held = {
            name
            for block in self._blocks
            if all(wanted.get(name) == (copy.shape, copy.dtype) for name, copy in block.copies.items())
            for name in block.copies
        }
        return [each for each in state_tensors if each.name not in held]

    def _block(self, state_tensors: Sequence[StateTensor]) -> CopyBlock:
        devices = [each.tensor.device for each in state_tensors if each.tensor.is_cuda]
        nbytes = _size(state_tensors) or 1
        memory, pinned = host_memory(nbytes, devices[0] if devices and self._pinned else None)
        self._pinned = pinned or not devices
        copies, start = {}, 0
        for each in state_tensors:
            copy = memory[start : start + each.tensor.nbytes]
            copies[each.name] = copy.view(each.tensor.dtype).view(each.tensor.shape)
            start += _room(each)
        return CopyBlock(nbytes, copies)

    def _check_memory(self, need: int) -> None:
        if need > 0 and (free := self.available()) < need + _LEAVE_FREE:
            raise CheckpointError(
                f"a background checkpoint needs {need >> 20} MiB of host memory for its copy, but "
                f"{free >> 20} MiB are free: pass --stage with a directory on a local disk, switch "
                "background checkpoints off with --every off, or use a machine with more memory [SG505]"
            )


def _room(state_tensor: StateTensor) -> int:
    return -(-state_tensor.tensor.nbytes // _ALIGNED) * _ALIGNED


def _size(state_tensors: Sequence[StateTensor]) -> int:
    return sum(map(_room, state_tensors))


def _grouped(state_tensors: Sequence[StateTensor]) -> Iterator[list[StateTensor]]:
    """Yield the tensors whose copies share a block."""
    block: list[StateTensor] = []
    size = 0
    for each in state_tensors:
        size += _room(each)
        if block and size > _PIECE:
            yield block
            block, size = [], _room(each)
        block.append(each)
    if block:
        yield block


def _pieces(into: torch.Tensor, tensor: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    if tensor.nbytes <= _PIECE or not tensor.is_contiguous():
        yield into, tensor
        return
    count = _PIECE // tensor.itemsize
    yield from zip(into.reshape(-1).split(count), tensor.reshape(-1).split(count), strict=True)
