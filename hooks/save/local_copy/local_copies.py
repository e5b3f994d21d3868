"""The local copies of one process: which of the two ways a background checkpoint goes, and when training moves again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ....providers.clock import Clock
from ...checkpoint.format.keys import CheckpointName
from ...checkpoint.format.manifest import RankManifest
from ...checkpoint.local_stage import Stage
from ...commit.cancel_scope import CancelScope
from ...commit.own_manifest import publish, queue_manifest
from ...commit.plan.write_plan import ALL, WriteProgress
from ...commit.upload.save_queue import SaveQueue
from ...commit.upload.transfer import StateChanged
from ...state.changes.audit import Reference
from ...state.device.host_buffer import HostBuffer
from ...state.state_tensor import StateTensor
from ..committer import Committer
from ..request import SaveContext, StagedSave
from ..shard_writer import ShardWriter
from .snapshot import Snapshot
from .stage_writer import StageWriter


class LocalCopies:
    """Copies the state for each background checkpoint. The saving thread uses it.

    Args:
        stage: the disk of this machine that copies go to; None if there is none for them.
        writer: the writer for the store.
        committer: commits the checkpoints on the stage.
        clock: the clock.
        suspicion: as in `Committer`.
        ahead: whether background checkpoints are made, so that their memory is taken before the first.
    """

    def __init__(
        self,
        stage: Stage | None,
        writer: ShardWriter,
        committer: Committer,
        clock: Clock,
        suspicion: Callable[[int, bool], str],
        *,
        ahead: bool,
    ) -> None:
        self._writer, self._committer, self._clock = writer, committer, clock
        self._suspicion, self._ahead = suspicion, ahead
        self.stager = None if stage is None else StageWriter(stage, writer)
        self.snapshot = Snapshot()

    def prepare(self, state_tensors: tuple[StateTensor, ...]) -> None:
        """Begin to take the host memory that the copies need."""
        if self._ahead and self.stager is None:
            self.snapshot.prepare(state_tensors)

    def take(
        self,
        save: SaveContext,
        next_name: Callable[[SaveContext], CheckpointName],
        opened: Callable[[], None],
    ) -> tuple[SaveContext, CheckpointName, float]:
        """Copy the state to this machine's disk, or else to host memory. Return the save of the copy, its name, and a time.

        The name is taken before the gate opens: after that training may go back, and the copy belongs to the attempt before.
        The time is when the gate opened, plus the seconds that the checksums took.

        Args:
            next_name: returns the name of the save's next checkpoint.
            opened: called as soon as the state may change again.

        Raises:
            StateChanged: the state moved during the copy.
            Abandoned: the save was called off.
            CheckpointError: the host's memory cannot hold the copy.
        """
        state, collected, reference = save.state, save.collected, save.reference()
        state_tensors: tuple[StateTensor, ...] = ()
        why = ""
        if (staged := self._stage(save, reference, next_name)) is None:
            state_tensors, why = (
                self.snapshot.take(collected.state_tensors, save.scope),
                state.inconsistency(),
            )
        name = next_name(save) if staged is None else staged.name
        checksums = state.audit.seconds
        self._suspicion(name.step, True)  # reads the losses of devices: after this, training moves again
        opened()
        at = self._clock.monotonic() + checksums
        if staged is None:
            why = why or save.check(reference, state_tensors)
        if why:
            raise StateChanged(why)
        return (
            replace(
                save, collected=replace(collected, state_tensors=state_tensors), in_place=False, held=staged
            ),
            name,
            at,
        )

    def _stage(
        self,
        save: SaveContext,
        reference: Reference | None,
        next_name: Callable[[SaveContext], CheckpointName],
    ) -> StagedSave | None:
        if (stager := self.stager) is None or stager.stage.off:
            return None
        state_tensors, name = save.collected.state_tensors, next_name(save)

        def commit(queue: SaveQueue[HostBuffer]) -> None:
            save.check_written(reference, queue.written(name))
            limited = replace(save, scope=queue.scope)
            own = self._committer.queue(queue, limited, name, "full", stager.writer)
            self._committer.commit(queue, own, limited, stager.writer)

        write_plan = self._writer.plans.of(state_tensors, renew=True)
        return stager.hold(state_tensors, write_plan, name, save.scope, save.moved, commit)

    def bring(self, manifest: RankManifest, scope: CancelScope) -> WriteProgress:
        """Upload the checkpoint that an earlier process of this run staged on this machine and did not upload.

        Raises:
            Abandoned: the upload was called off.
            StoreError: the store or the disk failed.
            CheckpointError: this version of spotguard does not stage in that form.
        """
        assert self.stager is not None
        name, staged = manifest.checkpoint, self.stager.left_behind(manifest, scope)
        write_progress = WriteProgress(staged.write_progress.write_plan)
        queue = self._writer.queue((), name, scope, write_progress=write_progress, fill=staged.fill)
        queue.objects()

        def make() -> RankManifest:
            written = queue.written(name)
            return replace(manifest, objects=written.objects, tensors=written.tensors)

        publish(queue, queue_manifest(queue, make, ALL), scope, self._clock)
        return write_progress

    def forget_objects(self) -> None:
        """Have the next copy refer to no object of an earlier one."""
        if self.stager is not None:
            self.stager.writer.plans.forget()

    def close(self) -> None:
        """End the threads. The saving thread calls this after its last save."""
        self.snapshot.close()
        if self.stager is not None:
            self.stager.writer.close()
