"""The checkpointer: it runs one save of one rank, from the state at rest to the committed checkpoint."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...providers.clock import Clock
from ...providers.errors import CheckpointError, StoreError
from ...providers.stores.base import BlobStore
from ...providers.stores.url import inside
from ..checkpoint.catalog import WholeCheckpoint
from ..checkpoint.format.keys import CheckpointName, checkpoint_prefix
from ..checkpoint.format.manifest import Kind, Level, referred
from ..checkpoint.history import AttemptHistory
from ..checkpoint.local_stage import Stage
from ..checkpoint.ranking import counts
from ..checkpoint.retention import Keep
from ..commit.cancel_scope import CancelScope
from ..commit.cleanup import Cleanup, SmallRequests
from ..commit.plan.damage import FoundDamage
from ..commit.plan.partitioner import RankRoles
from ..commit.plan.write_plan import ALL, WEIGHTS, WritePlan, WriteProgress
from ..commit.upload.object_in_flight import Progress
from ..commit.upload.transfer import StateChanged
from ..state.device_boundary import DeviceBoundary
from ..state.sharding.fingerprint import digests
from ..state.state import State
from .committer import Committer
from .emergency.budget import EarlierCheckpoint
from .emergency.emergency_save import AgreedSaves, EmergencySave
from .emergency.save_budget import BackgroundUpload, SaveBudget
from .local_copy.local_copies import LocalCopies
from .request import SaveContext, SaveCost, SavedCheckpoint, SavedCheckpoints, SaveNumbers, SaveSpec
from .shard_writer import ShardWriter

log = logging.getLogger("spotguard")


class Checkpointer:
    """Saves the registered state of one rank, one checkpoint at a time, on the saving thread."""

    def __init__(
        self,
        store: BlobStore,
        run_id: str,
        attempt: int,
        *,
        clock: Clock,
        keep: Keep,
        rank: int = 0,
        world: int = 1,
        incarnation: str = "",
        lossy: bool = False,
        copies: bool = False,
        stage: Stage | None = None,
        history: AttemptHistory | None = None,
        suspicion: Callable[[int, bool], str] = lambda step, still: "",
        damage: FoundDamage | None = None,
    ) -> None:
        self._store = store
        self._lossy = lossy
        self._run_id = run_id
        self.attempt = attempt
        self._clock = clock
        self._keep = keep
        self._rank, self._world = rank, world
        self.damage = damage or FoundDamage()
        #: The newest committed checkpoints.
        self.saved = SavedCheckpoints(self.damage)
        self._writer = ShardWriter(store, run_id, rank, world)
        self._writer.plans.damage = self.damage
        #: Small requests over the writer's connections.
        self.requests = SmallRequests(self._writer.uploads, run_id, clock)
        self._history = history or AttemptHistory()
        self._committer = Committer(
            run_id,
            clock,
            rank=rank,
            world=world,
            incarnation=incarnation,
            history=self._history,
            suspicion=suspicion,
        )
        self.cleanup = Cleanup(run_id, self._writer.uploads, self.damage)
        self._copies = LocalCopies(stage, self._writer, self._committer, clock, suspicion, ahead=copies)
        self._numbers = SaveNumbers()
        #: The write plan of the last save, or of the rehearsal after it.
        self._write_plan: WritePlan | None = None
        #: The background save whose bytes are on their way.
        self._upload: BackgroundUpload | None = None
        #: The reason why the last save was thrown away: the state that moved during the read. "" if it was not thrown away.
        self.spoiled = ""
        #: The reason why the registered state itself lacks moments; "" if it lacks none.
        self._lacks = ""
        #: The values that the registered state has and no save can hold.
        self._left_out: tuple[str, ...] = ()
        #: The traces in the store of saves for which the ranks have called.
        self._agreed = AgreedSaves()
        #: Bytes of a full save; 0 before it is known.
        self.nbytes = 0

    @property
    def last(self) -> SavedCheckpoint | None:
        """The newest committed checkpoint: of this attempt, or the one that training was restored from. None if it is damaged."""
        return self.saved.newest

    def warm(self) -> None:
        """Prepare everything that a save needs but the bytes. The saving thread calls this before its first save."""
        self._writer.uploads.warm(self.nbytes)

    @property
    def uploading(self) -> int | None:
        """The step of the background save whose bytes are on their way; None if there is none. Any thread may read it."""
        upload = self._upload
        return None if upload is None else upload.step

    def promotes(self, step: int, deadline: float) -> str:
        """Return why the save that is `uploading` is worth more, by `deadline`, than a new save of `step`; "" if it is not."""
        if (upload := self._upload) is None or self.damage.of(
            upload.name, upload.write_progress.refers(self._run_id, upload.name)
        ):
            return ""
        if (why := upload.promotes(step, deadline, self._known())) and not upload.announced:
            upload.announced = True
            self.requests.announce(upload.name, deadline - self._clock.monotonic(), upload.heard)
        return why

    def _known(self) -> EarlierCheckpoint | None:
        last = self.last
        return None if last is None else EarlierCheckpoint(last.step, self._clock.monotonic() - last.at)

    def cost(self, roles: RankRoles) -> SaveCost:
        """Return what this rank would write of a save with these roles, as far as it is planned. Any thread may call this."""
        return self._writer.cost(self._write_plan, roles, self.nbytes, self._clock.monotonic())

    def rehearse(self, state: State) -> None:
        """Plan for the state as it stands: names, shapes, headers. The plan holds until one of them changes.

        For a GPU's state, the host memory of background checkpoints is taken beside training from now on.

        Raises:
            StateError: the state cannot be saved.
            CheckpointError: there is no memory for the buffers.
        """
        state_tensors = state.collect().state_tensors
        self._writer.rehearse(state_tensors, lossy=self._lossy)
        self._write_plan = self._writer.plans.of(state_tensors)
        self._copies.prepare(state_tensors)

    def close(self) -> None:
        """End the writer's threads. The saving thread calls this after its last save."""
        self._copies.close()
        self._writer.close()

    def begin_attempt(self, attempt: int) -> None:
        """Begin a new attempt: training went back and goes another way. All later saves count as newer than all earlier ones."""
        self.attempt = attempt
        self._writer.plans.forget()
        self._copies.forget_objects()

    def restored(self, whole: WholeCheckpoint | None) -> None:
        """Note that training goes on from this checkpoint: a notice at this very step has nothing newer to save."""
        self.saved.forget()
        if whole is not None and whole.run_id == self._run_id:
            age = max(0.0, self._clock.time() - whole.manifests[0].created)
            url = inside(self._store.url, checkpoint_prefix(self._run_id, whole.name))
            saved_at = self._clock.monotonic() - age
            saved = SavedCheckpoint(
                whole.name.step, url, whole.written, 0.0, saved_at, whole.level, left_out=whole.left_out
            )
            # This rank did not write it. One rank knows what the parts of all refer to, and tells the others.
            manifests = () if self._rank else whole.manifests
            self.saved.add(replace(saved, name=whole.name, refers=frozenset(referred(manifests))))

    def save(
        self,
        state: State | DeviceBoundary,
        agreed: SaveSpec,
        kind: Kind,
        scope: CancelScope,
        progress: Progress | None = None,
        opened: Callable[[], None] | None = None,
        *,
        drill: bool = False,
    ) -> SavedCheckpoint | None:
        """Save the state as it stands now. Return None if the state moved during the read (`spoiled` names what moved).

        Args:
            opened: called as soon as the state may change again. With it, the saving thread first copies the state to this
                machine's disk if there is a stage, else to host memory. Without it, the workers read the state in place,
                and the state stands still to the end.
            drill: whether a drill asks for it, after which training goes on.

        Raises:
            Abandoned: the save is out of time, or was called off.
            StoreError: the store failed.
            CheckpointError: the host's memory cannot hold the copy, or the ranks' call is no later one than that of the last save.
        """
        self.spoiled = ""
        started = self._clock.monotonic()
        collected = state.collect()
        self.nbytes, self._lacks = collected.nbytes, collected.lacks
        if collected.left_out and collected.left_out != self._left_out:
            log.warning("step %d is saved without %s [SG424]", agreed.step, ", ".join(collected.left_out))
        self._left_out = collected.left_out
        names = self._numbers.names(self.attempt, agreed)
        if kind != "emergency":
            self._agreed.forget()
        save = SaveContext(state, collected, agreed, names, kind, scope, progress, in_place=True)
        try:
            with self._history.saving(drill=drill):
                if kind == "emergency":
                    return self._emergency(save, started)
                if opened is None:
                    return self._whole(save, self._name(save), started)
                save, name, opened_at = self._copies.take(save, self._name, opened)
                self._history.stood_still(opened_at - started)
                return self._whole(save, name, started, blocked=opened_at - started)
        except StateChanged as error:
            self.spoiled = str(error)
            self._agreed.forget()
            return None

    def _whole(
        self, save: SaveContext, name: CheckpointName, started: float, blocked: float = 0.0
    ) -> SavedCheckpoint:
        """Save the whole state without a budget."""
        try:
            write_progress = self._upload_all(save, name, started)
        except (StoreError, StateChanged):
            # Keep the objects if a notice waits, or if other ranks may still complete the checkpoint without this rank.
            if save.scope.left() is None and self._world == 1:
                self.cleanup.discard(name, save.scope)
            raise
        if name.attempt == self.attempt:
            self._writer.plans.committed(write_progress)
        saved = self._saved(name, write_progress, started, *save.agreed.extent, blocked=blocked)
        if save.scope.left() is None:
            try:  # before the next notice: the threads, buffers and connections that this save has shown to be useful
                self._writer.prepare(write_progress.write_plan)
            except CheckpointError as error:  # it concerns the next save: this one is committed
                log.warning("%s; the next save uses fewer threads and buffers", error)
            if self._committer.marked:
                self._prune(save.scope, name, name.attempt)
        # Of several ranks one prunes, and the others have returned: the save ends alike on all of them, and all hear of damage later.
        return self.saved.sound(saved) if self._world == 1 else saved

    def _upload_all(self, save: SaveContext, name: CheckpointName, started: float) -> WriteProgress:
        staged, state_tensors = save.held, save.collected.state_tensors
        write_plan = staged.write_progress.write_plan if staged is not None else self._plan(save, renew=True)
        write_progress = WriteProgress(write_plan, roles=save.agreed.roles)
        if not save.in_place and self._world > 1:
            save = replace(save, digests=digests(state_tensors, self._rank, save.scope.check))
        queue = self._writer.queue(
            state_tensors,
            name,
            save.scope,
            save.progress,
            save.moved,
            write_progress=write_progress,
            fill=None if staged is None else staged.fill,
        )
        record = partial(self._saved, name, write_progress, started, *save.agreed.extent)
        if not save.in_place:
            self._upload = BackgroundUpload(self._writer, self._clock, queue, name, started)
        try:
            queue.objects()
            queue.wait(queue.whole)
            self._agreed.put(save, name, record)
            own = self._committer.queue(queue, save, name, "full", self._writer)
            self._committer.commit(queue, own, save, self._writer)
            self._agreed.seen()
        finally:
            # Before the clean-up too: from here on there is no upload that a notice could let finish.
            self._upload = None
        return write_progress

    def bring(self, whole: WholeCheckpoint, scope: CancelScope) -> SavedCheckpoint | None:
        """Upload the checkpoint that an earlier process of this run staged on this machine and did not upload.

        Returns:
            The checkpoint; None if it is not needed any more.

        Raises:
            SpotguardError: as `LocalCopies.bring`.
        """
        last, name = self.last, whole.name
        if self._copies.stager is None or (last is not None and last.step >= name.step):
            return None
        started, attempt = self._clock.monotonic(), self.attempt
        self.cleanup.brought = name
        write_progress = self._copies.bring(whole.manifests[0], scope)
        self._lacks, self._left_out = "", whole.manifests[0].left_out
        saved = self._saved(name, write_progress, started, whole.manifests[0].level)
        self.saved.add(saved)
        self._prune(scope, name, attempt)
        return self.saved.sound(saved)

    def _emergency(self, save: SaveContext, started: float) -> SavedCheckpoint:
        """Save as much as fits; if the ranks have agreed on a save, this rank's part of it."""
        state_tensors, agreed, budget = save.collected.state_tensors, bool(save.agreed.epoch), None
        if agreed:
            write_progress = self._agreed.progress(save, self._plan(save))
        else:
            budget = SaveBudget(
                self._writer,
                state_tensors,
                save.step,
                lossy=self._lossy,
                last=self._known(),
                lower_counts=counts(save.step, self.saved.complete),
            )
            write_progress = WriteProgress(self._writer.plans.of(state_tensors))

        def put(name: CheckpointName) -> None:
            self._agreed.put(
                save, name, partial(self._saved, name, write_progress, started, *save.agreed.extent)
            )

        emergency = EmergencySave(
            self._writer,
            self._committer,
            save,
            begin=partial(self._name, save),
            write_progress=write_progress,
            budget=budget,
            putting=put,
        )
        saved = None
        try:
            emergency.run()
        finally:
            committed = emergency.committed
            if not agreed:
                self.requests.retract(committed[0] if committed is not None else None)
            if committed is not None:  # even if the save failed after that
                name, level, at = committed
                saved = self._saved(name, write_progress, started, level, emergency.less, at)
        assert saved is not None
        return saved

    def look_back(self) -> None:
        """Check whether the other ranks have committed a checkpoint that this rank put its part of, and set `last` if so.

        This is for a call of the ranks that a later call has replaced. The other ranks may have committed the earlier one, and
        may be gone.
        """
        self._agreed.look_back(self.requests.complete, self._committer.see)

    def _plan(self, save: SaveContext, *, renew: bool = False) -> WritePlan:
        if save.agreed.roles.whole_each:
            return self._writer.plans.apart(save.collected.state_tensors)
        self._write_plan = self._writer.plans.of(save.collected.state_tensors, renew=renew)
        return self._write_plan

    def _name(
        self, save: SaveContext, heard: Callable[[StoreError], None] = lambda error: None
    ) -> CheckpointName:
        """Return the name of the save's next checkpoint. If it is an emergency save, one of its ranks announces it."""
        name = next(save.names)
        if save.kind == "emergency" and (self._world == 1 or save.agreed.speaks):
            until = min(save.scope.deadline, save.agreed.departing_until)
            if until < math.inf:
                self.requests.announce(name, until - self._clock.monotonic(), heard)
        return name

    def _saved(
        self,
        name: CheckpointName,
        write_progress: WriteProgress,
        started: float,
        level: Level = "full",
        why: str = "",
        at: float | None = None,
        blocked: float = 0.0,
    ) -> SavedCheckpoint:
        at = self._clock.monotonic() if at is None else at
        url = inside(self._store.url, checkpoint_prefix(self._run_id, name))
        nbytes = write_progress.put_of(WEIGHTS if level == "weights" else ALL)
        seen, refers = self._committer.seen(name, self._left_out), write_progress.refers(self._run_id, name)
        saved = SavedCheckpoint(
            name.step, url, nbytes, at - started, at, level, why, blocked, *seen, name, refers
        ).lacking(self._lacks)
        # Another attempt: training went back meanwhile, and goes on from another checkpoint.
        if name.attempt == self.attempt:
            self.saved.add(saved)
        return saved

    def _prune(self, scope: CancelScope, name: CheckpointName, attempt: int) -> None:
        """Remove old checkpoints, as `name` is committed, unless a newer attempt has begun."""
        self.cleanup.prune(self._keep, attempt, scope)
        # If the prune was abandoned, a restore may be reading the stage.
        if self._copies.stager is not None and not scope.abandoned:
            self._copies.stager.in_the_store(name, self.nbytes, scope)
