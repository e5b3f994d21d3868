"""The checkpointer: it runs one save of one rank, from the state at rest to the committed checkpoint."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from ...providers.clock import Clock
from ...providers.errors import CheckpointError, StoreError
from ...providers.stores.base import BlobStore
from ...providers.stores.url import inside
from ..checkpoint.catalog import WholeCheckpoint
from ..checkpoint.format.keys import CheckpointName, checkpoint_prefix
from ..checkpoint.format.manifest import Kind, Level, RankManifest, referred
from ..checkpoint.history import AttemptHistory
from ..checkpoint.local_stage import Stage
from ..checkpoint.ranking import counts
from ..checkpoint.retention import Keep
from ..state.device_boundary import DeviceBoundary
from ..state.state import State
from .cancel_scope import CancelScope
from .cleanup import Cleanup, SmallRequests
from .commit.publish import publish, queue_manifest
from .committer import Committer
from .emergency.agreed_saves import AgreedSaves
from .emergency.emergency_save import EmergencySave
from .emergency.save_budget import BackgroundUpload, SaveBudget
from .local_copy.local_copies import LocalCopies
from .plan.budget import EarlierCheckpoint
from .plan.damage import FoundDamage
from .plan.partitioner import RankRoles
from .plan.write_plan import ALL, WEIGHTS, WritePlan, WriteProgress
from .request import SaveContext, SaveCost, SavedCheckpoint, SaveSpec
from .shard_writer import ShardWriter
from .upload.transfer import Progress
from .upload.uploader import StateChanged

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
        #: The checkpoints of this run that are damaged. Anybody who finds or hears of one adds it.
        self.damage = damage or FoundDamage()
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
        self.cleanup = Cleanup(run_id, self._writer.uploads, self._writer.plans, self.damage)
        self._copies = LocalCopies(stage, self._writer, self._committer, clock, suspicion, ahead=copies)
        #: The save number of the next checkpoint.
        self._number = 0
        #: The write plan of the last save, or of the rehearsal after it.
        self._write_plan: WritePlan | None = None
        #: The background save whose bytes are on their way.
        self._upload: BackgroundUpload | None = None
        #: The newest committed checkpoint, damaged or not, and the newest that has its moments.
        self._last: SavedCheckpoint | None = None
        self._with_moments: SavedCheckpoint | None = None
        #: The reason why the last save was thrown away: the state that moved during the read. "" if it was not thrown away.
        self.spoiled = ""
        #: The reason why the registered state itself lacks moments; "" if it lacks none.
        self._lacks = ""
        #: The traces in the store of saves for which the ranks have called.
        self._agreed = AgreedSaves()
        #: Bytes of a full save; 0 before it is known.
        self.nbytes = 0

    @property
    def last(self) -> SavedCheckpoint | None:
        """The newest committed checkpoint: of this attempt, or the one that training was restored from. None if it is damaged."""
        saved = self._last
        return None if saved is None or self.damage_of(saved) else saved

    @property
    def complete(self) -> int:
        """The step of the newest committed checkpoint that has its moments. -1: there is none, or it is damaged."""
        saved = self._with_moments
        return -1 if saved is None or self.damage_of(saved) else saved.step

    def report_last(self) -> None:
        """Add the newest checkpoints to the damaged ones if this rank's part of them is: other ranks do not know what it uses."""
        for saved in (self._last, self._with_moments):
            if saved is not None and saved.name is not None and (why := self.damage_of(saved)):
                self.damage.add(saved.name, why)

    def damage_of(self, saved: SavedCheckpoint) -> str:
        """Return why a committed checkpoint cannot be restored, as far as anybody has found; "" if nobody has."""
        return "" if saved.name is None else self.damage.of(saved.name, saved.refers)

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
        """Return what this rank would write of a save with these roles, as far as the save is planned.

        Any thread may call this: it does not read the state.
        """
        link, now, write_plan = self._writer.uploads.link, self._clock.monotonic(), self._write_plan
        rate, commit = link.rate(now), link.commit or 0.0
        if write_plan is None:
            return SaveCost(self.nbytes, 0, None if rate is None else rate.expected, commit)
        write_progress = WriteProgress(write_plan, roles=roles)
        weights = write_progress.share(WEIGHTS)
        return SaveCost(
            weights, write_progress.share() - weights, None if rate is None else rate.expected, commit
        )

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
        self._forget_objects()

    def _forget_objects(self) -> None:
        self._writer.plans.forget()
        self._copies.forget_objects()

    def restored(self, whole: WholeCheckpoint | None) -> None:
        """Note that training goes on from this checkpoint: a notice at this very step has nothing newer to save."""
        self._last = self._with_moments = None
        if whole is not None and whole.run_id == self._run_id:
            age = max(0.0, self._clock.time() - whole.manifests[0].created)
            url = inside(self._store.url, checkpoint_prefix(self._run_id, whole.name))
            saved_at = self._clock.monotonic() - age
            saved = SavedCheckpoint(whole.name.step, url, whole.written, 0.0, saved_at, whole.level)
            # This rank did not write it. One rank knows what the parts of all refer to, and tells the others.
            manifests = () if self._rank else whole.manifests
            self._note(replace(saved, name=whole.name, refers=frozenset(referred(manifests))))

    def _note(self, saved: SavedCheckpoint) -> None:
        self._last = saved
        if saved.level != "weights":
            self._with_moments = saved
        self.report_last()

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
        names = self._names(self.attempt, agreed)
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
            self._make_ready(write_progress.write_plan)
            if self._committer.marked:
                self._prune(save.scope, name, name.attempt)
        return self._sound(saved)

    def _upload_all(self, save: SaveContext, name: CheckpointName, started: float) -> WriteProgress:
        staged, state_tensors = save.held, save.collected.state_tensors
        write_plan = staged.write_progress.write_plan if staged is not None else self._plan(save, renew=True)
        write_progress, fill = (
            WriteProgress(write_plan, roles=save.agreed.roles),
            None if staged is None else staged.fill,
        )
        if not save.in_place and self._world > 1:
            save = replace(save, digests=save.state.digests(state_tensors, save.scope.check))
            self.cleanup.see_referred(save.scope)
        queue = self._writer.queue(
            state_tensors,
            name,
            save.scope,
            save.progress,
            save.moved,
            write_progress=write_progress,
            fill=fill,
        )
        if not save.in_place:
            self._upload = BackgroundUpload(
                self._writer, self._clock, write_progress, name, started, queue.hear
            )
        try:
            queue.objects()
            queue.wait(queue.whole)
            if save.agreed.epoch:
                record = partial(self._saved, name, write_progress, started, *save.agreed.extent)
                self._agreed.put(save, name, record)
            own = self._committer.queue(queue, save, name, "full", self._writer)
            self._committer.commit(queue, own, save, self._writer)
            self._agreed.seen()
        finally:
            # Before the clean-up too: from here on there is no upload that a notice could let finish.
            self._upload = None
        return write_progress

    def _make_ready(self, write_plan: WritePlan) -> None:
        """Make the threads, buffers and connections that this save has shown to be useful, before the next notice."""
        try:
            self._writer.prepare(write_plan)
        except CheckpointError as error:  # it concerns the next save: this one is committed
            log.warning("%s; the next save uses fewer threads and buffers", error)

    def bring(self, whole: WholeCheckpoint, scope: CancelScope) -> SavedCheckpoint | None:
        """Upload the checkpoint that an earlier process of this run staged on this machine and did not upload.

        Returns:
            The checkpoint; None if it is not needed any more.

        Raises:
            Abandoned: the upload was called off.
            StoreError: the store or the disk failed.
            CheckpointError: this version of spotguard does not stage in that form.
        """
        stager, last, name = self._copies.stager, self.last, whole.name
        if stager is None or (last is not None and last.step >= name.step):
            return None
        started, attempt = self._clock.monotonic(), self.attempt
        manifest = whole.manifests[0]
        staged = stager.left_behind(manifest, scope)
        write_progress = WriteProgress(staged.write_progress.write_plan)
        queue = self._writer.queue((), name, scope, write_progress=write_progress, fill=staged.fill)
        queue.objects()

        def make() -> RankManifest:
            written = queue.written(name)
            return replace(manifest, objects=written.objects, tensors=written.tensors)

        publish(queue, queue_manifest(queue, make, ALL), scope, self._clock)
        self._lacks = ""
        saved = self._saved(name, write_progress, started, manifest.level)
        self._note(saved)
        self._prune(scope, name, attempt)
        return self._sound(saved)

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
                lower_counts=counts(save.step, self.complete),
            )
            write_progress = WriteProgress(self._writer.plans.of(state_tensors))

        def put(name: CheckpointName) -> None:
            if agreed:
                record = partial(self._saved, name, write_progress, started, *save.agreed.extent)
                self._agreed.put(save, name, record)

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
        self._agreed.look_back(lambda name: self.requests.complete(name, self._world))

    def _plan(self, save: SaveContext, *, renew: bool = False) -> WritePlan:
        state_tensors = save.collected.state_tensors
        if save.agreed.roles.whole_each:
            return self._writer.plans.apart(state_tensors)
        self._write_plan = self._writer.plans.of(state_tensors, renew=renew)
        return self._write_plan

    def _names(self, attempt: int, agreed: SaveSpec) -> Iterator[CheckpointName]:
        """Yield the names of one save's checkpoints, which no other save has.

        One counter numbers the checkpoints of all saves. A call of the ranks moves it on to a number that all of them know.
        """
        if agreed.number < self._number and agreed.epoch:
            raise CheckpointError(f"the ranks' call {agreed.epoch} has been saved, or a later one has")
        self._number = max(self._number, agreed.number)
        while True:
            self._number += 1
            yield CheckpointName(attempt, agreed.step, self._number - 1)

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
        suspect = self._committer.suspect(name)
        saved = SavedCheckpoint(name.step, url, nbytes, at - started, at, level, why, blocked, suspect)
        refers = write_progress.refers(self._run_id, name)
        saved = replace(saved.lacking(self._lacks), name=name, refers=refers)
        # Another attempt: training went back meanwhile, and goes on from another checkpoint.
        if name.attempt == self.attempt:
            self._note(saved)
        return saved

    def _sound(self, saved: SavedCheckpoint) -> SavedCheckpoint:
        """Return the checkpoint of a save without a deadline, unless it was found damaged meanwhile, as by the prune after it.

        In a job of several ranks, one rank prunes, and the others have returned. So the save ends alike on all of them, and all hear
        of the damage later.

        Raises:
            CheckpointError: it was, in a job of one process.
        """
        if self._world == 1 and (why := self.damage_of(saved)):
            raise CheckpointError(f"step {saved.step} was committed, and cannot be restored: {why}")
        return saved

    def _prune(self, scope: CancelScope, name: CheckpointName, attempt: int) -> None:
        """Remove old checkpoints, as `name` is committed, unless a newer attempt has begun."""
        self.cleanup.prune(self._keep, attempt, scope)
        # If the prune was abandoned, a restore may be reading the stage.
        if self._copies.stager is not None and not scope.abandoned:
            self._copies.stager.in_the_store(name, self.nbytes, scope)
