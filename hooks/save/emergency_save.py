"""The saves of a single process under a budget: the emergency save, and the background upload that a notice interrupts.

An emergency save writes everything if that fits. Otherwise it writes the most valuable tier first, so that the save does not
end with nothing. Objects are put in the order of their tiers, so a full save is a lower save that went on. When time gets
short, the weights in the store are committed as a checkpoint of the lower level. The moments follow under the next name. If all
moments arrive, a full manifest refers to the weights under their first name.

Clouds break their promise. So a save that fits also puts the lower level's manifest, if a restore would take it. The moments go
on beside that manifest, and its failure costs them nothing.

A background upload that is under way at a notice is called off, or finishes if its rest is worth more than a new save.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from ...providers.clock import Clock
from ...providers.errors import SpotguardError
from ..checkpoint.format.keys import CheckpointName
from ..checkpoint.format.manifest import Level
from ..state.state_tensor import StateTensor, Tier
from .cancel_scope import Abandoned, CancelScope
from .plan.budget import (
    BudgetChoice,
    BudgetInputs,
    BudgetPlan,
    EarlierCheckpoint,
    SaveSizes,
    StoredBytes,
    UploadInProgress,
    plan,
    replan,
)
from .plan.write_plan import ALL, WEIGHTS, WriteProgress, WrittenState
from .shard_writer import ShardWriter
from .upload.transfer import Progress
from .upload.transfer_handle import TransferHandle
from .upload.uploader import StateChanged

log = logging.getLogger("spotguard")

#: Seconds between two checks whether the plan still holds.
_LOOK = 0.25
#: Seconds until the first check: a store's first answer takes long, and tells nothing of the link.
_FIRST_LOOK = 1.0
_MOMENTS = (Tier.MOMENTS,)


class EmergencySave:
    """One emergency save. The saving thread uses it.

    Args:
        commit: puts the manifest and the marker of a level; raises what a save raises.
        put: puts only the manifest of the lower level, and takes a few seconds at most.
        begin: returns the name of the next checkpoint to write.
        look: called after each object. It returns "" or what has moved since the boundary.
        lossy: moments may be stored rounded, if that makes them fit.
        last: the newest committed checkpoint.
        lower_counts: a restore would take the lower level of this step.
    """

    def __init__(
        self,
        writer: ShardWriter,
        scope: CancelScope,
        *,
        step: int,
        begin: Callable[[], CheckpointName],
        commit: Callable[[CheckpointName, Level, WrittenState], None],
        put: Callable[[CheckpointName, WrittenState], None],
        look: Callable[[], str],
        lossy: bool = False,
        last: EarlierCheckpoint | None = None,
        lower_counts: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self._writer = writer
        self._scope = scope
        self._step = step
        self._begin = begin
        self._commit = commit
        self._put_lower = put
        self._moved = look
        self._lossy = lossy
        self._last = last
        self._lower_counts = lower_counts
        self._progress = progress
        #: Guards the plan: bytes leave on many threads.
        self._lock = threading.Lock()
        self._looked_at = scope.now() + _FIRST_LOOK - _LOOK
        self._handle: TransferHandle | None = None
        #: The present plan, with its reason.
        self.plan = BudgetPlan(BudgetChoice.KEEP, "")
        #: The objects that were written.
        self.write_progress: WriteProgress
        #: The name and level of the committed checkpoint.
        self.committed: tuple[CheckpointName, Level] | None = None
        #: When it was committed, in monotonic seconds.
        self.at = 0.0
        #: Why the moments are missing; "" if they are not.
        self._missed = ""
        #: It is decided whether the moments are rounded.
        self._settled = False
        #: The lower level's manifest was tried beside moments that fit. The save does not try it again.
        self._tried_early = False

    def run(self, state_tensors: Sequence[StateTensor]) -> None:
        """Save as much as fits. `committed` names the checkpoint that counts, even if this raises.

        Raises:
            Abandoned: the save ran out of time before a commit, nothing fits, or the save was called off.
            StoreError: the store failed, and nothing was committed.
            StateChanged: the state moved. A checkpoint that was committed before was checked then, and counts.
            Exception: anything else (a device without memory for a copy), and nothing was committed.
        """
        exact = self._writer.plans.of(state_tensors)
        #: The write plans, by whether moments are rounded.
        self._layouts = (
            {False: exact, True: self._writer.plans.rounded(state_tensors)} if self._lossy else {False: exact}
        )
        self._known = self._writer.plans.known(exact)
        self._sizes = self._sizes_of_tiers()
        self._second_look = self._writer.second_look(state_tensors, exact)
        self.write_progress = WriteProgress(exact)
        self.plan = plan(self._situation())
        log.debug("the plan: %s", self.plan.reason)
        if self.plan.choice is BudgetChoice.KEEP:
            raise Abandoned(self.plan.reason)
        name = self._begin()
        try:
            # The plan decides whether to round the moments when the weights are in the store.
            for tiers in [WEIGHTS, ALL] if self._lossy else [ALL]:
                self._choose_layout(settled=tiers is ALL)
                name = self._put(state_tensors, name, tiers)
            self._commit_as("full", name)
        except Exception as why:  # after any error a committed checkpoint counts
            if self.committed is None:
                raise
            self._missed = str(why) or type(why).__name__
            if self._scope.abandoned or isinstance(why, StateChanged):
                raise
            log.debug("step %d is committed without its moments: %s", self._step, self._missed)

    @property
    def less(self) -> str:
        """Why the committed checkpoint is not the whole exact state; "" if it is."""
        if self._missed:
            return f"{self.plan.reason}; the moments: {self._missed}"
        return self.plan.reason if self.write_progress.write_plan.rounded else ""

    # --- inside ---

    def _put(
        self, state_tensors: Sequence[StateTensor], name: CheckpointName, tiers: Sequence[Tier]
    ) -> CheckpointName:
        """Put these tiers into the store, and commit the lower level on the way if its turn comes.

        Returns:
            The name of the next manifest.
        """
        self._watch()
        handle = self._handle = self._writer.start(
            state_tensors,
            name,
            self._scope,
            self._hear,
            self._moved,
            write_progress=self.write_progress,
            tiers=tiers,
        )
        while True:
            try:
                until = self.plan.fall_back_at
                if handle.wait(lambda until=until: self._turn() or self._until() != until, until):  # type: ignore[misc]
                    return name
            except (Abandoned, StateChanged):
                raise  # there is no time for a manifest, or no valid state for one
            except Exception:
                if not self._has_weights_alone() or self._scope.abandoned:
                    raise
                # For example a full bucket, or a device without memory for rounding: a manifest may still fit.
                self._commit_as("weights", name)
                raise
            if self._scope.now() >= self.plan.fall_back_at:
                self._fall_back()
            if self._turn():
                try:
                    self._commit_lower(name)
                except SpotguardError as why:
                    handle.call_off(Abandoned(str(why)))
                    raise
                name = self._begin()

    def _commit_as(self, level: Level, name: CheckpointName) -> None:
        self._commit(name, level, self.write_progress.written(name, ALL if level == "full" else WEIGHTS))
        self.committed, self.at = (name, level), self._scope.now()

    def _commit_lower(self, name: CheckpointName) -> None:
        """Commit the lower level on the way. If everything fits, a manifest that fails does not end the save."""
        if self.plan.lower_first:
            self._commit_as("weights", name)
        else:
            self._tried_early = True
            try:
                self._put_lower(name, self.write_progress.written(name, WEIGHTS))
            except StateChanged:
                raise
            except SpotguardError as why:
                self._scope.check()
                log.debug("the weights of step %d are not committed before its moments: %s", self._step, why)
                return
            self.committed, self.at = (name, "weights"), self._scope.now()
        log.debug("the weights of step %d are committed, its moments follow", self._step)

    def _has_weights_alone(self) -> bool:
        return (
            self.committed is None and self.write_progress.has(WEIGHTS) and not self.write_progress.has(ALL)
        )

    def _turn(self) -> bool:
        """Return whether to commit the lower level now, beside the moments that are on their way."""
        due = self.plan.lower_first or (self.plan.early and not self._tried_early)
        return due and self._has_weights_alone()

    def _until(self) -> float:
        """Return when to fall back, by the present deadline.

        If the deadline has moved, this replans: on a link that stands still no other call does.
        """
        if self._scope.deadline < self._planned_for:
            with self._lock:
                self._look()
        return self.plan.fall_back_at

    def _hear(self, phase: str, done: int, total: int) -> None:
        """Take the progress of the writer's threads, which call this for each piece that has left."""
        if self._progress is not None:
            self._progress(phase, done, total)
        with self._lock:
            now = self._scope.now()
            if now - self._looked_at < _LOOK or self.committed is not None:
                return
            self._looked_at = now
            before = self.plan
            self._look()
        if self.plan != before and self._handle is not None:
            self._handle.wake()

    def _look(self) -> None:
        """Replan: keep the plan if it still holds, else take a lesser one."""
        before, self.plan = self.plan, replan(self.plan, self._situation(), self._landed())
        if self.plan.reason != before.reason:
            log.debug("the plan changes: %s", self.plan.reason)
        self._watch()

    def _fall_back(self) -> None:
        with self._lock:
            reason, end, slack = self.plan.reason, self.plan.end, self.plan.slack
            self.plan = BudgetPlan(BudgetChoice.LOWER, reason, end, slack, lower_first=True)
            self._watch()

    def _watch(self) -> None:
        """Keep the moments off the link while the weights are short of time, or must be committed early."""
        if self.committed is None:
            self.write_progress.weights_first |= self.plan.lower_first
            self.write_progress.weights_ahead |= self.plan.early

    def _choose_layout(self, settled: bool) -> None:
        """Choose the write plan with rounded or unrounded moments, as the plan requires. The weights are the same in both.

        If the moments only follow the committed weights, they are rounded too, as fewer bytes arrive sooner.
        """
        with self._lock:
            self._settled = settled
            rounded = self._lossy and self.plan.choice in (BudgetChoice.FULL_LOSSY, BudgetChoice.LOWER)
            self.write_progress.write_plan = self._layouts[rounded]

    # --- the inputs of a plan ---

    def _sizes_of_tiers(self) -> SaveSizes:
        exact, rounded = self._layouts[False], self._layouts.get(True)
        return SaveSizes(
            parameters=exact.bytes_of(WEIGHTS),
            moments=exact.bytes_of(_MOMENTS),
            rounded=None if rounded is None else rounded.bytes_of(_MOMENTS),
            unchanged=sum(exact.objects[index].size for index in self._known),
        )

    def _situation(self) -> BudgetInputs:
        link, now = self._writer.uploads.link, self._scope.now()
        self._planned_for = self._scope.deadline
        return BudgetInputs(
            now=now,
            deadline=self._planned_for,
            step=self._step,
            sizes=self._sizes,
            rate=link.rate(now),
            commit=(link.commit or 0.0) + self._second_look,
            commit_at_best=(link.commit_at_best or 0.0) + self._second_look,
            last=self._last,
            lower_counts=self._lower_counts,
        )

    def _landed(self) -> StoredBytes:
        write_progress = self.write_progress
        return StoredBytes(
            a=max(0, self._sizes.a - write_progress.left(WEIGHTS, self._known)),
            b=write_progress.write_plan.bytes_of(_MOMENTS) - write_progress.left(_MOMENTS),
            b_begun=self._settled,
        )


# --- the background upload ---


class BackgroundUpload:
    """A background save whose bytes are on their way.

    The caller asks `promotes` at the notice, when the deadline moves, and as bytes leave.

    Args:
        write_progress: its progress in the store.
        began: monotonic seconds at which its state was taken.
    """

    def __init__(
        self,
        writer: ShardWriter,
        clock: Clock,
        write_progress: WriteProgress,
        name: CheckpointName,
        began: float,
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._draft = write_progress
        self.name = name
        #: A start that comes early was told of it.
        self.announced = False
        self._began = began
        self._plan: BudgetPlan | None = None

    @property
    def step(self) -> int:
        return self.name.step

    def promotes(self, step: int, deadline: float, last: EarlierCheckpoint | None) -> str:
        """Return why this upload is worth more, by `deadline`, than a new save of `step`; "" if it is not.

        If nothing fits, the upload may go on too: trying loses nothing, and the time has no other use.
        """
        at, before = self._situation(step, deadline, last), self._plan
        decided = (
            plan(at)
            if before is None or before.choice is BudgetChoice.KEEP
            else replan(before, at, StoredBytes())
        )
        newer = last is None or self.step > last.step
        why = ""
        if decided.choice is BudgetChoice.PROMOTE:
            why = decided.reason
        elif decided.choice is BudgetChoice.KEEP and newer:
            why = (
                f"spotguard tries to finish the background checkpoint of step {self.step}, because "
                f"nothing fits: {decided.reason}"
            )
        if before is None or before.choice is not decided.choice:
            log.debug("the plan: %s", why or decided.reason)
        self._plan = decided
        return why

    def _situation(self, step: int, deadline: float, last: EarlierCheckpoint | None) -> BudgetInputs:
        write_plan, link, now = self._draft.write_plan, self._writer.uploads.link, self._clock.monotonic()
        return BudgetInputs(
            now=now,
            deadline=deadline,
            step=step,
            sizes=SaveSizes(
                write_plan.bytes_of(WEIGHTS),
                write_plan.bytes_of((Tier.MOMENTS,)),
                unchanged=self._writer.unchanged_bytes(write_plan),
            ),
            rate=link.rate(now),
            commit=link.commit or 0.0,
            commit_at_best=link.commit_at_best or 0.0,
            background=UploadInProgress(
                self.step, now - self._began, write_plan.nbytes - self._draft.bytes_of(ALL)
            ),
            last=last,
        )
