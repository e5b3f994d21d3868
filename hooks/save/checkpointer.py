"""One save, from standing state to committed checkpoint."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ...providers.clock import Clock
from ...providers.errors import CheckpointError, StoreError
from ...providers.stores.base import BlobStore
from ...providers.stores.url import inside
from ..checkpoint.catalog import WholeCheckpoint
from ..checkpoint.format.keys import CheckpointName, checkpoint_prefix
from ..checkpoint.format.manifest import Kind, Level
from ..checkpoint.local_stage import Stage
from ..checkpoint.ranking import counts
from ..checkpoint.retention import Keep
from ..state.changes.audit import Reference
from ..state.state import State
from ..state.tensor_item import StateTensor
from .cancel_scope import CancelScope
from .cleanup import Cleanup, SmallRequests
from .commit.publish import publish
from .committer import Committer
from .local_copy import Snapshot, StagedSave, StageWriter
from .plan.budget import EarlierCheckpoint
from .plan.partitioner import RankRoles
from .plan.write_plan import ALL, WEIGHTS, WritePlan, WriteProgress, WrittenState
from .policy import BackgroundUpload, EmergencySave
from .request import SaveContext, SaveCost, SavedCheckpoint, SaveSpec
from .shard_writer import ShardWriter
from .share import RankShare
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
        stage: Stage | None = None,
    ) -> None:
        self._store = store
        self._lossy = lossy
        self._run_id = run_id
        self.attempt = attempt
        self._clock = clock
        self._keep = keep
        self._world = world
        self._writer = ShardWriter(store, run_id, rank, world)
        #: By the writer's connections, for whoever wants something small.
        self.errands = SmallRequests(self._writer.uploads, run_id, clock)
        self._committer = Committer(run_id, clock, rank=rank, world=world, incarnation=incarnation)
        self.tidier = Cleanup(run_id, self._writer.uploads, self._writer.plans)
        self._stager = None if stage is None else StageWriter(stage, self._writer)
        self._count = itertools.count()
        self._snapshot = Snapshot()
        #: By which the last save was written, or the next is planned.
        self._write_plan: WritePlan | None = None
        #: The background save whose bytes are on their way.
        self._upload: BackgroundUpload | None = None
        #: The newest committed checkpoint, of this attempt or restored from.
        self.last: SavedCheckpoint | None = None
        #: The step of the newest of them that has its moments. -1: there is none.
        self.complete = -1
        #: Why the last save was thrown away: "" or what moved while it was read.
        self.spoiled = ""
        #: Why what is being saved lacks moments of its own accord: "" where it does not.
        self._lacks = ""
        #: Of the last save that ranks agreed on for a notice: which state that was, and what is in the store of it.
        self._shared: tuple[tuple[int, int], WriteProgress] | None = None
        #: What this rank has put its part of and not seen committed: which state, its name, and what makes it `last`.
        self._unseen: list[tuple[tuple[int, int], CheckpointName, Callable[[], object]]] = []
        #: Bytes of a full save; 0 before it is known.
        self.nbytes = 0

    def warm(self) -> None:
        """Have everything a save needs but the bytes. On the saving thread, before its first save."""
        self._writer.uploads.warm(self.nbytes)

    @property
    def uploading(self) -> int | None:
        """The step of the background save whose bytes are on their way. Any thread."""
        upload = self._upload
        return None if upload is None else upload.step

    def promotes(self, step: int, deadline: float) -> str:
        """Why what is `uploading` is worth more, by `deadline`, than a new save of `step`; "" where it is not."""
        upload = self._upload
        return "" if upload is None else upload.promotes(step, deadline, self._known())

    def _known(self) -> EarlierCheckpoint | None:
        last = self.last
        return None if last is None else EarlierCheckpoint(last.step, self._clock.monotonic() - last.at)

    def cost(self, roles: RankRoles) -> SaveCost:
        """What this rank would write of a save shared so, as far as it is planned. Any thread: nothing is read."""
        link, now, write_plan = self._writer.uploads.link, self._clock.monotonic(), self._write_plan
        rate, commit = link.rate(now), link.commit or 0.0
        if write_plan is None:
            return SaveCost(self.nbytes, 0, None if rate is None else rate.expected, commit)
        draft = WriteProgress(write_plan, roles=roles)
        weights = draft.share(WEIGHTS)
        return SaveCost(weights, draft.share() - weights, None if rate is None else rate.expected, commit)

    def rehearse(self, state: State) -> None:
        """Plan for the state as it stands: names, shapes, headers. It stays for as long as they do.

        Raises:
            StateError: it cannot be saved.
            CheckpointError: there is no memory for the buffers.
        """
        leaves = state.collect().leaves
        self._writer.rehearse(leaves, lossy=self._lossy)
        self._write_plan = self._writer.plans.of(leaves)

    def close(self) -> None:
        """Let the writer's threads end. On the saving thread, after its last save."""
        if self._stager is not None:
            self._stager.writer.close()
        self._writer.close()

    def begin_attempt(self, attempt: int) -> None:
        """What is saved from here on is newer than all that was: training went back, and goes another way."""
        self.attempt = attempt
        self._count = itertools.count()
        self._writer.plans.forget()
        if self._stager is not None:
            self._stager.writer.plans.forget()

    def restored(self, whole: WholeCheckpoint | None) -> None:
        """Training goes on from this checkpoint: a notice at this very step has nothing newer to save."""
        self.last, self.complete = None, -1
        if whole is not None and whole.run_id == self._run_id:
            age = max(0.0, self._clock.time() - whole.manifests[0].created)
            url = inside(self._store.url, checkpoint_prefix(self._run_id, whole.name))
            saved_at = self._clock.monotonic() - age
            self._note(SavedCheckpoint(whole.name.step, url, whole.written, 0.0, saved_at, whole.level))

    def _note(self, saved: SavedCheckpoint) -> None:
        self.last = saved
        if saved.level != "weights":
            self.complete = saved.step

    def save(
        self,
        state: State,
        agreed: SaveSpec,
        kind: Kind,
        scope: CancelScope,
        progress: Progress | None = None,
        opened: Callable[[], None] | None = None,
    ) -> SavedCheckpoint | None:
        """Save the state that stands now. None: it moved while it was read (`spoiled` says what).

        Args:
            opened: called as soon as the state may change again. Given, the state is first copied to this machine's
                disk where there is a stage, else to host memory; not given, it is streamed from where it lies and
                stands still to the end.

        Raises:
            Abandoned: out of time, or called off.
            StoreError: the store failed.
            CheckpointError: the host's memory cannot hold the copy.
        """
        self.spoiled = ""
        started = self._clock.monotonic()
        collected = state.collect()
        self.nbytes, self._lacks = collected.nbytes, collected.lacks
        numbers = iter(agreed.numbers) if agreed.epoch else self._count
        if kind != "emergency":
            self._shared, self._unseen = None, []
        save = SaveContext(state, collected, agreed, numbers, kind, scope, progress, in_place=True)
        try:
            if kind == "emergency":
                return self._emergency(save, started)
            if opened is None:
                return self._whole(save, self._name(save), started)
            save, name, opened_at = self._apart(save, opened)
            return self._whole(save, name, started, blocked=opened_at - started)
        except StateChanged as error:
            self.spoiled = str(error)
            self._shared, self._unseen = None, []
            return None

    def _apart(
        self, save: SaveContext, opened: Callable[[], None]
    ) -> tuple[SaveContext, CheckpointName, float]:
        """With its bytes in a place of their own: on this machine's disk, or else in host memory. And its name: once the
        gate is open training may go back, and what was read before is of the attempt before. And when that was, later by what its checksums took."""
        state, collected, reference = save.state, save.collected, save.reference()
        leaves: tuple[StateTensor, ...] = ()
        why = ""
        if (held := self._stage(save, reference)) is None:
            leaves, why = self._snapshot.take(collected.leaves, save.scope), state.broken()
        name = self._name(save) if held is None else held.name
        checksums = state.audit.seconds
        opened()
        at = self._clock.monotonic() + checksums
        if held is None:
            why = why or save.check(reference, leaves)
        if why:
            raise StateChanged(why)
        return replace(save, collected=replace(collected, leaves=leaves), in_place=False, held=held), name, at

    def _stage(self, save: SaveContext, reference: Reference | None) -> StagedSave | None:
        if (stager := self._stager) is None or stager.stage.off:
            return None
        leaves, name = save.collected.leaves, self._name(save)

        def commit(written: WrittenState, scope: CancelScope) -> None:
            save.check_written(reference, written)
            self._committer.commit(replace(save, scope=scope), name, "full", written, stager.writer)

        write_plan = self._writer.plans.of(leaves, renew=True)
        return stager.hold(leaves, write_plan, name, save.scope, save.moved, commit)

    def _whole(
        self, save: SaveContext, name: CheckpointName, started: float, blocked: float = 0.0
    ) -> SavedCheckpoint:
        """All of it, at leisure."""
        try:
            draft = self._upload_all(save, name, started)
        except (StoreError, StateChanged):
            # Not while a notice waits for it; nor what other ranks may be making whole without this one's looking on.
            if save.scope.left() is None and self._world == 1:
                self.tidier.discard(name, save.scope)
            raise
        if name.attempt == self.attempt:
            self._writer.plans.committed(draft)
        saved = self._saved(name, draft, started, *save.agreed.extent, blocked=blocked)
        if save.scope.left() is None:
            self._make_ready(draft.write_plan)
            if self._committer.marked:
                self._prune(save.scope, name, name.attempt)
        return saved

    def _upload_all(self, save: SaveContext, name: CheckpointName, started: float) -> WriteProgress:
        held, leaves = save.held, save.collected.leaves
        write_plan = held.draft.write_plan if held is not None else self._plan(save, renew=True)
        draft, fill = WriteProgress(write_plan, roles=save.agreed.roles), None if held is None else held.fill
        if not save.in_place and self._world > 1:
            save = replace(save, digests=save.state.digests(leaves, save.scope.check))
            self.tidier.see_referred(save.scope)
        if not save.in_place:
            self._upload = BackgroundUpload(self._writer, self._clock, draft, save.step, started)
        try:
            self._writer.write(leaves, name, save.scope, save.progress, save.moved, draft=draft, fill=fill)
            found = partial(self._saved, name, draft, started, *save.agreed.extent)
            self._unseen = [(save.identity, name, found)] if save.agreed.epoch else []
            self._committer.commit(save, name, "full", draft.written(name), self._writer)
            self._unseen = []
        finally:
            # Also before it is tidied up: there is nothing that a notice could let finish.
            self._upload = None
        return draft

    def _make_ready(self, write_plan: WritePlan) -> None:
        """What this save taught is there before the next notice: threads, frames, connections."""
        try:
            self._writer.prepare(write_plan)
        except CheckpointError as error:  # of the next save: this one is committed
            log.warning("%s; the next save makes do with less", error)

    def bring(self, whole: WholeCheckpoint, scope: CancelScope) -> SavedCheckpoint | None:
        """Take to the store what an earlier process of this run staged here and did not. None: it is not needed any more.

        Raises:
            Abandoned: called off.
            StoreError: the store failed, or the disk.
            CheckpointError: it is not as this version stages.
        """
        stager, last, name = self._stager, self.last, whole.name
        if stager is None or (last is not None and last.step >= name.step):
            return None
        started, attempt = self._clock.monotonic(), self.attempt
        manifest = whole.manifests[0]
        held = stager.left_behind(manifest, scope)
        draft = WriteProgress(held.draft.write_plan)
        written = self._writer.write((), name, scope, draft=draft, fill=held.fill)
        own = replace(manifest, objects=written.objects, tensors=written.tensors)
        publish(self._writer.uploads, own, scope, self._clock)
        self._lacks = ""
        self._note(self._saved(name, draft, started, manifest.level))
        self._prune(scope, name, attempt)
        return self.last

    def _emergency(self, save: SaveContext, started: float) -> SavedCheckpoint:
        """What fits."""
        if save.agreed.epoch:
            return self._share(save, started)
        emergency = EmergencySave(
            self._writer,
            save.scope,
            step=save.step,
            begin=partial(self._name, save),
            commit=partial(self._committer.commit, save, writer=self._writer),
            put=partial(self._committer.put_own, save, writer=self._writer),
            look=save.moved,
            lossy=self._lossy,
            last=self._known(),
            lower_counts=counts(save.step, self.complete),
            progress=save.progress,
        )
        saved = None
        try:
            emergency.run(save.collected.leaves)
        finally:
            if emergency.committed is not None:  # also if it ended otherwise after that
                name, level = emergency.committed
                why, at = emergency.less, emergency.at
                saved = self._saved(name, emergency.draft, started, level, why, at)
        assert saved is not None
        return saved

    def _share(self, save: SaveContext, started: float) -> SavedCheckpoint:
        """What the ranks agreed on."""
        draft = self._begun(save)

        def commit(name: CheckpointName, level: Level, written: WrittenState, scope: CancelScope) -> None:
            if level == "full":
                found = partial(self._saved, name, draft, started, *save.agreed.extent)
                self._unseen.append((save.identity, name, found))
            self._committer.commit(replace(save, scope=scope), name, level, written, self._writer)

        share = RankShare(
            self._writer,
            save.scope,
            weights=save.agreed.weights,
            begin=partial(self._name, save),
            put=partial(self._committer.put_own, save, writer=self._writer),
            commit=commit,
            look=save.moved,
            progress=save.progress,
            whole=save.agreed.extent,
        )
        name, level, why = share.run(save.collected.leaves, draft)
        return self._saved(name, draft, started, level, why)

    def look_back(self) -> None:
        """Where a later call took the place of one for which this rank's part is there: the others may have committed that,
        and be gone. `last` says what was found."""
        there = (
            found for _, name, found in reversed(self._unseen) if self.errands.complete(name, self._world)
        )
        next(there, lambda: None)()

    def _begun(self, save: SaveContext) -> WriteProgress:
        """What this rank has put of this very state already, for an earlier call: a second machine goes, and the ranks share
        otherwise. It stays where it is, also where this rank has seen it whole: others may not have."""
        write_plan, roles = self._plan(save), save.agreed.roles
        before = self._shared
        if before is not None and before[0] == save.identity and before[1].write_plan is write_plan:
            draft = before[1].with_roles(roles)
        else:
            draft = WriteProgress(write_plan, roles=roles)
            self._unseen = [
                each for each in self._unseen if each[0] == save.identity
            ]  # the others may commit those yet
        self._shared = save.identity, draft
        return draft

    def _plan(self, save: SaveContext, *, renew: bool = False) -> WritePlan:
        leaves = save.collected.leaves
        if save.agreed.roles.whole_each:
            return self._writer.plans.apart(leaves)
        self._write_plan = self._writer.plans.of(leaves, renew=renew)
        return self._write_plan

    def _name(self, save: SaveContext) -> CheckpointName:
        return CheckpointName(self.attempt, save.step, next(save.numbers))

    def _saved(
        self,
        name: CheckpointName,
        draft: WriteProgress,
        started: float,
        level: Level = "full",
        why: str = "",
        at: float | None = None,
        blocked: float = 0.0,
    ) -> SavedCheckpoint:
        at = self._clock.monotonic() if at is None else at
        url = inside(self._store.url, checkpoint_prefix(self._run_id, name))
        nbytes = draft.put_of(WEIGHTS if level == "weights" else ALL)
        saved = SavedCheckpoint(name.step, url, nbytes, at - started, at, level, why, blocked).lacking(
            self._lacks
        )
        if name.attempt == self.attempt:  # or training went back meanwhile, and goes on from elsewhere
            self._note(saved)
        return saved

    def _prune(self, scope: CancelScope, name: CheckpointName, attempt: int) -> None:
        """`name` is committed, so old checkpoints go, unless a newer attempt has begun."""
        self.tidier.prune(self._keep, attempt, scope)
        if self._stager is not None and not scope.abandoned:  # or who goes back may be reading there
            self._stager.in_the_store(name, self.nbytes, scope)
