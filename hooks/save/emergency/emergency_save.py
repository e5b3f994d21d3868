"""The emergency save: one rank's part of what is saved before its machine goes.

Objects are put in the order of their tiers, so a full save is a lower save that went on. The manifest of the lower level, if it is
wanted, stands in the queue behind the weights. The moments follow under the next name. If all moments arrive, a full manifest refers
to the weights under their first name. There are three orders of the two:

- "with the rest": there is no manifest of the lower level, unless the moments fail.
- "early": everything fits, but clouds break their promise. The moments go on beside that manifest, and its failure costs them
  nothing.
- "first": time is short, and no moment uses the link before the weights are in the store.

A single process decides by a budget, as bytes leave (`save_budget`). Several ranks have agreed on the order, because a level counts
only if all ranks have put it. A rank that cannot complete the full level commits the lower one, if the others have put it too.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from ....providers.errors import SpotguardError, StoreError
from ...checkpoint.catalog import WholeCheckpoint
from ...checkpoint.format.keys import CheckpointName
from ...checkpoint.format.manifest import CommitMarker, Level
from ...commit.cancel_scope import Abandoned
from ...commit.own_manifest import OwnManifest
from ...commit.plan.write_plan import ALL, WEIGHTS, WritePlan, WriteProgress
from ...commit.upload.save_queue import SaveQueue
from ...commit.upload.transfer import StateChanged
from ...state.device.host_buffer import HostBuffer
from ..committer import Committer
from ..request import SaveContext
from ..shard_writer import ShardWriter
from .save_budget import SaveBudget

log = logging.getLogger("spotguard")

#: Time that is reserved to check that the other ranks' weights are in the store too: a share of the time that remains when
#: this rank's weights are there, and a number of seconds at most. The check takes a few requests.
_KEPT, _KEPT_MOST = 0.25, 2.0


class EmergencySave:
    """One rank's part of one emergency save. The saving thread uses it.

    Args:
        begin: returns the name of the next checkpoint to write. It may announce it, and calls its argument with each transient
            failure of the store that it meets.
        write_progress: the objects that are in the store, and the plan of the others.
        budget: decides the order as bytes leave; None if the ranks have agreed on it.
        putting: called with the name of the full level, before its manifest is put.
    """

    def __init__(
        self,
        writer: ShardWriter,
        committer: Committer,
        save: SaveContext,
        *,
        begin: Callable[[Callable[[StoreError], None]], CheckpointName],
        write_progress: WriteProgress,
        budget: SaveBudget | None = None,
        putting: Callable[[CheckpointName], None] = lambda name: None,
    ) -> None:
        self._writer = writer
        self._committer = committer
        self._save = save
        self._begin = begin
        self._budget = budget
        self._putting = putting
        self.write_progress = write_progress
        self._scope = save.scope
        #: The part of the scope in which the moments may go on.
        self._whole = save.scope
        self._queue: SaveQueue[HostBuffer]
        #: The name of the next manifest.
        self._name: CheckpointName
        #: The manifests of the two levels, if they were queued.
        self._lower: OwnManifest | None = None
        self._full: OwnManifest | None = None
        #: The lower one has failed beside the moments, and was tried once more when time got short.
        self._retried = False
        #: The name and level of the committed checkpoint, and when it was committed, in monotonic seconds. In a job of one
        #: process a manifest of the lower level counts as soon as it is in the store: `committed` knows it.
        self._committed: tuple[CheckpointName, Level, float] | None = None
        #: Why the moments are missing; "" if they are not.
        self._missed = ""

    def run(self) -> None:
        """Save as much as fits. `committed` names the checkpoint that counts, even if this raises.

        Raises:
            Abandoned: the save ran out of time before a commit, nothing fits, or the save was called off, or another rank's part
                is missing.
            StoreError: the store failed, and nothing was committed.
            StateChanged: the state moved. A checkpoint that was committed before was checked then, and counts.
            Exception: anything else (a device without memory for a copy), and nothing was committed.
        """
        save, budget = self._save, self._budget
        if budget is not None:
            budget.begin(self.write_progress, self._scope, lambda: self.committed is not None)
        self._name = self._begin(self._hear)
        self._queue = self._writer.queue(
            save.collected.state_tensors,
            self._name,
            self._scope,
            self._left if budget is not None else save.progress,
            save.moved,
            write_progress=self.write_progress,
        )
        self._queue.plan = self._plan
        try:
            # The budget decides whether to round the moments when the weights are in the store.
            for tiers in [WEIGHTS, ALL] if budget is not None and budget.lossy else [ALL]:
                if budget is not None:
                    budget.choose_layout(settled=tiers is ALL)
                self._order()
                self._queue.objects(tiers)
                self._queue.wait(self._queue.whole)
            self._commit_full()
            if (lower := self._lower) is not None and not lower.entry.stored:
                error, step = lower.entry.error, self._name.step
                log.debug("the weights of step %d are not committed before its moments: %s", step, error)
                lower.dismiss()
        except Exception as why:
            self._missed = str(why) or type(why).__name__
            if self._scope.abandoned or isinstance(why, StateChanged) or not self._commit_less(why):
                raise
            log.debug("step %d is committed without its moments: %s", self._name.step, self._missed)

    @property
    def committed(self) -> tuple[CheckpointName, Level, float] | None:
        """The name and level of the checkpoint that counts, and when it was committed; None if none does."""
        lower, alone = self._lower, self._budget is not None
        if self._committed is None and alone and lower is not None and lower.entry.stored:
            return (
                (lower.manifest.checkpoint, "weights", lower.entry.at)
                if self.write_progress.has(WEIGHTS)
                else None
            )
        return self._committed

    @property
    def less(self) -> str:
        """Why the committed checkpoint is not the whole exact state; "" if it is."""
        if self._budget is not None:
            reason = self._budget.plan.reason
            rounded = reason if self.write_progress.write_plan.rounded else ""
            return f"{reason}; the moments: {self._missed}" if self._missed else rounded
        if self._missed:
            return f"time was short, so the weights were uploaded first; the moments: {self._missed}"
        return self._save.agreed.extent[1]

    # --- inside ---

    def _plan(self) -> float:
        """Queue the manifest of the lower level when it is wanted. Return when the moments are out of time.

        Raises:
            Abandoned: they are, and the ranks have agreed to commit the weights without them.
        """
        until = self._until()
        if self._scope.now() >= until:
            if self._budget is None:
                raise Abandoned("out of time")
            self._budget.fall_back()
            self._order()
            until = self._until()
        if self._turn():
            self._queue_lower()
        return until

    def _commit_full(self) -> None:
        name = self._name
        self._full = self._committer.queue(self._queue, self._save, name, "full", self._writer)
        self._putting(name)
        self._committer.commit(self._queue, self._full, self._save, self._writer, self._whole)
        self._committed = (
            name,
            "full" if self._budget is not None else self._save.agreed.extent[0],
            self._scope.now(),
        )

    def _commit_less(self, why: Exception) -> bool:
        """Commit the lower level if it is not, as the full one has failed. Return whether it is committed."""
        progress = self.write_progress
        if self._full is not None:
            self._full.dismiss()
        if self._budget is None:
            self._queue.plan = lambda: math.inf
            if self._save.agreed.weights == "with the rest" or not isinstance(why, SpotguardError):
                return False
            self._queue.objects(WEIGHTS)
            self._queue.wait(self._queue.whole)
        elif self.committed is not None:
            return True
        elif isinstance(why, Abandoned) or progress.missing(WEIGHTS) or not progress.missing(ALL):
            return False
        else:
            # For example a full bucket, or a device without memory for rounding: a manifest may still fit.
            self._queue.objects(WEIGHTS)
            self._queue.settle()  # what the store has confirmed may be in doubt
            if self.committed is not None:
                return True
        if self._lower is None:
            self._queue_lower()
        assert self._lower is not None
        self._lower.retry()
        self._committer.commit(self._queue, self._lower, self._save, self._writer)
        self._committed = self._lower.manifest.checkpoint, "weights", self._scope.now()
        return True

    def _queue_lower(self) -> None:
        """Queue the manifest of the lower level. What is put from now on has the next name."""
        first = self._order_of()[0]
        if self._lower is None:
            if self._full is not None:  # its name is taken
                self._name = self._begin(self._hear)
            self._lower = self._committer.queue(
                self._queue, self._save, self._name, "weights", self._writer, beside=not first
            )
            self._name = self._begin(self._hear)
        else:
            self._lower.retry(tolerated=(SpotguardError,))
            self._retried = True
        if self._budget is not None and first:
            self._committer.mark(self._queue, self._lower)

    def _turn(self) -> bool:
        """Return whether to queue the lower level's manifest now, beside the moments that are on their way."""
        first, early = self._order_of()
        if self._lower is None:
            # Another rank's moments may be missing, even if this rank's are there.
            return (first or early) and (self._budget is None or self._has_weights_alone())
        failed = self._lower.entry.error is not None and not self._retried
        return first and failed and self._has_weights_alone()

    def _has_weights_alone(self) -> bool:
        progress = self.write_progress
        return self.committed is None and progress.has(WEIGHTS) and not progress.has(ALL)

    def _order_of(self) -> tuple[bool, bool]:
        """Return whether the weights go "first", and whether they go "early"."""
        if (budget := self._budget) is not None:
            return budget.plan.lower_first, budget.plan.early
        return self._save.agreed.weights == "first", self._save.agreed.weights == "early"

    def _order(self) -> None:
        """Keep the moments off the link while the weights are short of time, or must be committed early."""
        if self._budget is not None:
            self._budget.watch()
        else:
            self.write_progress.weights_first, self.write_progress.weights_ahead = self._order_of()

    def _until(self) -> float:
        """Return when the moments are out of time, by the present deadline."""
        if (budget := self._budget) is not None:
            budget.see_deadline()
            return math.inf if self.write_progress.has(ALL) else budget.plan.fall_back_at
        (first, early), left = self._order_of(), self._scope.left()
        limited = early or (first and self.write_progress.has(WEIGHTS))
        if limited and left is not None and self._whole is self._scope:
            self._whole = self._scope.part(self._scope.deadline - min(_KEPT_MOST, left * _KEPT))
        return self._whole.deadline

    def _hear(self, error: StoreError) -> None:
        if (queue := getattr(self, "_queue", None)) is not None:
            queue.hear(error)

    def _left(self, phase: str, done: int, total: int) -> None:
        """Take the progress of the writer's threads, which call this for each piece that has left."""
        assert self._budget is not None
        if self._save.progress is not None:
            self._save.progress(phase, done, total)
        if self._budget.left():
            self._queue.wake()


# --- several calls of the ranks ---


class AgreedSaves:
    """The saves of one state that calls of the ranks have asked for: their objects, and the checkpoints that may be complete."""

    def __init__(self) -> None:
        #: The identity of the state, and its progress in the store.
        self._last: tuple[tuple[int, int], WriteProgress] | None = None
        #: Checkpoints whose part this rank has put, and whose commit it has not seen. Each entry has the identity of the
        #: state, the checkpoint's name, and the function that records the checkpoint as committed.
        self._unseen: list[tuple[tuple[int, int], CheckpointName, Callable[[], object]]] = []

    def forget(self) -> None:
        """Forget all: another state counts from now on."""
        self._last, self._unseen = None, []

    def progress(self, save: SaveContext, write_plan: WritePlan) -> WriteProgress:
        """Return the progress of this very state from an earlier call of the ranks; without such a call, a new progress.

        A second call comes when a second machine goes, and the ranks share the writing in another way. Objects in the
        store stay valid. This holds even if this rank has seen the earlier checkpoint complete: other ranks may not have.
        """
        roles, before = save.agreed.roles, self._last
        if before is not None and before[0] == save.identity and before[1].write_plan is write_plan:
            write_progress = before[1].with_roles(roles)
        else:
            write_progress = WriteProgress(write_plan, roles=roles)
            # The other ranks may still commit the checkpoints of this state.
            self._unseen = [each for each in self._unseen if each[0] == save.identity]
        self._last = save.identity, write_progress
        return write_progress

    def put(self, save: SaveContext, name: CheckpointName, record: Callable[[], object]) -> None:
        """Note that this rank puts its part of a checkpoint now, if the ranks have agreed on one.

        Args:
            record: records the checkpoint as committed.
        """
        if save.agreed.epoch:
            self._unseen.append((save.identity, name, record))

    def seen(self) -> None:
        """Note that this rank has seen the commit."""
        self._unseen = []

    def look_back(
        self,
        complete: Callable[[CheckpointName], CommitMarker | WholeCheckpoint | None],
        see: Callable[[CheckpointName, str, tuple[str, ...]], None],
    ) -> None:
        """Record the newest checkpoint that the other ranks have committed, if there is one.

        Args:
            complete: returns a checkpoint if it can be restored.
            see: called before the record, with why the checkpoint is suspect and what its ranks have left out.
        """
        for _, name, record in reversed(self._unseen):
            if (found := complete(name)) is not None:
                see(name, found.suspect, found.left_out)
                record()
                return
