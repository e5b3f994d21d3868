"""The saving thread's hold on the stage: a checkpoint onto the disk, and its objects from there to the store.

The state is written from where it lies, so no copy of it in host memory is needed, and the gate is shut for as long as the
disk takes. Then the objects are read back through the writer's own frames and put under the same names, each byte
checked on the way against the CRCs that were taken when it left the state.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ...providers.errors import CheckpointError, CorruptError, SpotguardError, StoreError
from ...providers.stores.base import BlobStore
from ..checkpoint.format.crc import crc32
from ..checkpoint.format.dtypes import torch_dtype
from ..checkpoint.format.keys import CheckpointName, checkpoint_prefix, object_name, parse_object_name
from ..checkpoint.format.manifest import RankManifest
from ..checkpoint.local_stage import Stage
from ..state.device import SideStreams, host_tensor
from ..state.host_buffer import HostBuffer
from ..state.memory_access import copyable
from ..state.tensor_item import StateTensor
from .cancel_scope import Abandoned, CancelScope
from .plan.bin_packing import PlannedChunk, PlannedObject, PlannedTensor
from .plan.partitioner import ALL_STAY, RankRoles
from .plan.write_plan import StoredObject, TensorForm, WritePlan, WriteProgress, WrittenState
from .shard_writer import ShardWriter
from .upload.uploader import Fill, StateChanged

log = logging.getLogger("spotguard")

#: Training stands still while a checkpoint is staged: seconds that it may take beside those for its bytes, and the bytes a
#: second below which a disk is no help (one connection to a store carries 50 to 95 MB/s).
_PATIENCE, _SLOWEST = 5.0, 50e6


#: Stands for an object that this rank has no part in.
_ANOTHERS = PlannedObject(b"", (), 0, holders=(-1,))


@dataclass(frozen=True, slots=True)
class StagedSave:
    """A checkpoint on this machine's disk, under the name that it will have in the store."""

    name: CheckpointName
    #: Where its objects lie there, and their CRCs.
    draft: WriteProgress
    #: Reads them back.
    fill: Fill[HostBuffer]


class StageWriter:
    """Used by the saving thread.

    Args:
        stage: where.
        writer: the store's. The stage's has its threads and frames: the two never write at the same time.
    """

    def __init__(self, stage: Stage, writer: ShardWriter) -> None:
        self.stage = stage
        self.writer = writer.beside(stage.files)

    def hold(
        self,
        leaves: Sequence[StateTensor],
        write_plan: WritePlan,
        name: CheckpointName,
        scope: CancelScope,
        moved: Callable[[], str],
        commit: Callable[[WrittenState, CancelScope], None],
        roles: RankRoles = ALL_STAY,
    ) -> StagedSave | None:
        """Write a checkpoint onto the disk, planned as for the store. None: it cannot be had there, and why is said.

        Args:
            moved: as of `ShardWriter.write`.
            commit: puts its manifest through `writer`; raises as that does.
            roles: those of the save: no more is staged than it will put.

        Raises:
            Abandoned: `scope` was called off.
            Spoiled: the state moved while it was read.
        """
        draft = WriteProgress(write_plan, roles=roles)
        seconds = _PATIENCE + draft.share() / _SLOWEST
        limit = scope.part(scope.now() + seconds)
        self.writer.plans.adopt(write_plan)
        try:
            self.writer.write(leaves, name, limit, None, moved, draft=draft)
            commit(draft.written(name), limit)
        except Abandoned:
            scope.check()
            self.stage.switch_off(f"its disk did not take {draft.share() >> 20} MiB in {seconds:.0f} s")
            return None
        except (StoreError, CheckpointError) as error:
            log.warning("step %d is not staged, it is copied to host memory instead: %s", name.step, error)
            self._tidy(lambda: self.stage.discard(name), limit)
            return None
        except StateChanged:
            self._tidy(lambda: self.stage.discard(name), limit)
            raise
        self.writer.plans.committed(draft)
        log.info("step %d is on this machine's disk, and goes to the store from there", name.step)
        return StagedSave(name, draft, self._reported(name, draft, self._fill(draft)))

    def in_the_store(self, name: CheckpointName, nbytes: int, scope: CancelScope) -> None:
        """This one is in the store now: what is older goes, and it too where there is no room for another beside it."""

        def tidy() -> None:
            if self.stage.prune(name, nbytes):
                self.writer.plans.forget()

        self._tidy(tidy, scope)

    def left_behind(self, manifest: RankManifest, scope: CancelScope) -> StagedSave:
        """What another process staged here.

        Raises:
            Abandoned: called off.
            CheckpointError: it is not as this version stages.
            StoreError: it cannot be read.
        """
        found: list[WriteProgress] = []
        self.writer.uploads.ask(
            lambda left: found.append(_draft_of(self.stage.files, manifest)), scope, again=False
        )
        return StagedSave(manifest.checkpoint, found[0], self._fill(found[0]))

    def _fill(self, draft: WriteProgress) -> Fill[HostBuffer]:
        """What reads the objects of a staged draft back."""
        write_plan, files, run_id = draft.write_plan, self.stage.files, self.stage.run_id

        def fill(index: int, frame: HostBuffer) -> list[int]:
            planned, held = write_plan.objects[index], draft.stored[index]
            key = checkpoint_prefix(run_id, held.at) + object_name(write_plan.rank, write_plan.world, index)
            data = frame.view(0, planned.size)
            files.read_into(key, 0, data)
            crcs = [crc32(data[piece.start : piece.end]) for piece in planned.pieces]
            if crcs != held.crcs or data[: len(planned.header)] != planned.header:
                raise CorruptError(f"{key} in {files.url} is not what was written there: look at that disk")
            return crcs

        return fill

    def _reported(
        self, name: CheckpointName, draft: WriteProgress, fill: Fill[HostBuffer]
    ) -> Fill[HostBuffer]:
        """The same; an object that cannot be had any more fails this save, and not all that come after it."""

        def read(index: int, frame: HostBuffer) -> list[int]:
            try:
                return fill(index, frame)
            except StoreError as error:
                if draft.stored[index].at != name:
                    self.writer.plans.forget()  # it is referred to: the next one is staged in full
                elif not self.stage.off:
                    self.stage.switch_off(str(error))  # it was written a moment ago
                raise

        return read

    def _tidy(self, what: Callable[[], None], scope: CancelScope) -> None:
        try:
            # On a thread: a disk that hangs holds up nothing but itself.
            self.writer.uploads.ask(lambda left: what(), scope, again=False)
        except SpotguardError as error:
            log.debug("the stage %s stays as it is for now: %s", self.stage.folder, error)


def _draft_of(files: BlobStore, manifest: RankManifest) -> WriteProgress:
    """The plan that a manifest's objects were written by, as far as to copy them needs it."""
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
            raise CheckpointError(f"{key} in {files.url} has no name that this version gives")
        # An object's number is that of its plan, in which others write some, of which nothing is staged here.
        objects += [_ANOTHERS] * (place[2] - len(objects))
        header = bytearray(entry.header)
        files.read_into(key, 0, memoryview(header))
        if crc32(header) != entry.header_crc32:
            raise CorruptError(f"{key} in {files.url} is damaged: its header is not the one that was written")
        held = sorted(pieces.get(index, []), key=lambda each: each[0].start)
        objects.append(PlannedObject(bytes(header), tuple([piece for piece, _ in held]), entry.size))
        stored[place[2]] = StoredObject([crc for _, crc in held], at)
    largest = max((planned.size for planned in objects), default=0)
    write_plan = WritePlan(shapes, tuple(items), tuple(objects), largest, manifest.rank, manifest.world)
    return WriteProgress(write_plan, stored)


# A copy of the state in host memory, from which a background checkpoint is written while training goes on.

#: Bytes that are copied between two looks at whether the save is still wanted.
_PIECE = 64 * 2**20
#: Host memory that it must leave to others, in bytes.
_LEAVE_FREE = 512 * 2**20


class Snapshot:
    """Used by the saving thread. Its memory is kept and reused."""

    def __init__(self) -> None:
        self._held: dict[str, torch.Tensor] = {}
        self._streams = SideStreams()
        self.available = available_memory

    def take(self, leaves: tuple[StateTensor, ...], scope: CancelScope) -> tuple[StateTensor, ...]:
        """The leaves as they stand, in host memory.

        Raises:
            Abandoned: called off.
            CheckpointError: it cannot hold them.
        """
        self._check_memory(leaves)
        wanted: dict[str, torch.Tensor] = {}
        for leaf in leaves:
            held = self._held.get(leaf.name)
            if held is None or held.shape != leaf.tensor.shape or held.dtype != leaf.tensor.dtype:
                held = host_tensor(leaf.tensor)
            wanted[leaf.name] = held
        self._held = wanted  # what is no longer part of the state is let go before anything is copied
        for leaf in leaves:
            with torch.no_grad(), self._streams.on(leaf.tensor.device):
                for into, part in _pieces(copyable(wanted[leaf.name]), copyable(leaf.tensor)):
                    scope.check()
                    into.copy_(part, non_blocking=True)
        self._streams.finish()
        return tuple(replace(leaf, tensor=wanted[leaf.name], still=True) for leaf in leaves)

    def _check_memory(self, leaves: tuple[StateTensor, ...]) -> None:
        held = sum(tensor.nbytes for tensor in self._held.values())
        need = sum(leaf.tensor.nbytes for leaf in leaves) - held
        if need > 0 and (free := self.available()) < need + _LEAVE_FREE:
            raise CheckpointError(
                f"a background checkpoint needs {need >> 20} MiB of host memory for its copy and {free >> 20} MiB "
                "are free: give it a folder on a local disk with --stage DIR, switch it off with --every off, or use "
                "a machine with more memory"
            )


def _pieces(into: torch.Tensor, tensor: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    if tensor.nbytes <= _PIECE or not tensor.is_contiguous():
        yield into, tensor
        return
    count = _PIECE // tensor.itemsize
    yield from zip(into.reshape(-1).split(count), tensor.reshape(-1).split(count), strict=True)


# How much host memory a copy of the state may take.

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = Path("/sys/fs/cgroup")


def available_memory(meminfo: Path = _MEMINFO, cgroups: Path = _CGROUPS) -> int:
    """Bytes that can be had without swapping or being killed: the machine's, or the container's if that is less.

    MemAvailable is the whole machine's; in a pod of 32 GiB on a machine of 512 a copy that fits there would have
    training killed. (docs.kernel.org: proc.rst, cgroup-v2.rst "memory.max", cgroup-v1/memory.rst.)
    """
    facts = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free = int(facts["MemAvailable"].split()[0]) * 1024
    for limit, used, stat, reclaimable in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        try:
            most = (cgroups / limit).read_text().strip()
            if most.isdigit():
                counts = dict(line.split() for line in (cgroups / stat).read_text().splitlines())
                left = int(most) - int((cgroups / used).read_text()) + int(counts.get(reclaimable, 0))
                free = min(free, max(0, left))
        except OSError:
            continue  # no such limit here: the machine's own number stands
    return free
