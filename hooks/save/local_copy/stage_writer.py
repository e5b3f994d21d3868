"""The stage, a disk of this machine: a background checkpoint is written onto it first, and uploaded from there.

`StageWriter` writes the checkpoint onto the stage, straight from the tensors. So it needs no copy in host memory, and the gate
is shut while the disk writes. Then the workers read the objects back into their own buffers and put them under the same names.
They check each byte on the way against the CRCs of the first write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ....providers.errors import CheckpointError, CorruptError, SpotguardError, StoreError
from ....providers.stores.base import BlobStore
from ...checkpoint.format.crc import crc32
from ...checkpoint.format.keys import CheckpointName, checkpoint_prefix, object_name, parse_object_name
from ...checkpoint.format.manifest import RankManifest
from ...checkpoint.local_stage import Stage
from ...commit.cancel_scope import Abandoned, CancelScope
from ...commit.plan.bin_packing import PlannedChunk, PlannedObject, PlannedTensor
from ...commit.plan.write_plan import StoredObject, WritePlan, WriteProgress
from ...commit.upload.save_queue import SaveQueue
from ...commit.upload.transfer import Fill, StateChanged
from ...state.device.host_buffer import HostBuffer
from ...state.state_tensor import StateTensor
from ..request import StagedSave
from ..shard_writer import ShardWriter

log = logging.getLogger("spotguard")

#: Limits of a staging, as training stands still meanwhile: seconds in addition to those for its bytes, and the bytes a second
#: below which a disk does not help (one connection to a store carries 50 to 95 MB/s).
_PATIENCE, _SLOWEST = 5.0, 50e6
#: The placeholder of an object that this rank takes no part in.
_ANOTHERS = PlannedObject(b"", (), 0, holders=(-1,))


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
        commit: Callable[[SaveQueue[HostBuffer]], None],
    ) -> StagedSave | None:
        """Write a checkpoint onto the stage, with the plan of the store.

        Args:
            moved: called after each object's bytes were read. It returns "" or what has moved since the boundary.
            commit: commits the objects of the queue, and raises the errors of a commit.

        Returns:
            The staged checkpoint; None if the stage cannot take it. The reason is logged.

        Raises:
            Abandoned: `scope` was called off.
            StateChanged: the state moved during the read.
        """
        write_progress = WriteProgress(write_plan)
        seconds = _PATIENCE + write_progress.share() / _SLOWEST
        limit = scope.part(scope.now() + seconds)
        self.writer.plans.adopt(write_plan)
        try:
            queue = self.writer.queue(state_tensors, name, limit, None, moved, write_progress=write_progress)
            queue.objects()
            queue.wait(queue.whole)
            commit(queue)
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
    forms, items = [], []
    for item, tensor in enumerate(manifest.tensors):
        forms.append(PlannedTensor(tensor.name, tensor.dtype, tensor.shape))
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
    write_plan = WritePlan(tuple(forms), tuple(items), tuple(objects), largest, manifest.rank, manifest.world)
    return WriteProgress(write_plan, stored)
