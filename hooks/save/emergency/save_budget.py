"""The budget of a single process: what it saves in the remaining time, and what becomes of the background upload.

An emergency save writes everything if that fits. Otherwise it writes the most valuable tier first, so that the save does not
end with nothing. As bytes leave, the plan is checked against the link, and may become a lesser one.

A background upload that is under way at a notice is called off, or finishes if its rest is worth more than a new save.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from ....providers.clock import Clock
from ...checkpoint.format.keys import CheckpointName
from ...checkpoint.tier import Tier
from ...commit.cancel_scope import Abandoned, CancelScope
from ...commit.plan.write_plan import ALL, WEIGHTS, WriteProgress
from ...commit.upload.save_queue import SaveQueue
from ...state.device.host_buffer import HostBuffer
from ...state.state_tensor import StateTensor
from ..shard_writer import ShardWriter
from .budget import (
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

log = logging.getLogger("spotguard")

#: Seconds between two checks whether the plan still holds.
_LOOK = 0.25
#: Seconds until the first check: a store's first answer takes long, and tells nothing of the link.
_FIRST_LOOK = 1.0
_MOMENTS = (Tier.MOMENTS,)


class SaveBudget:
    """What one emergency save of a single process writes, and in which order.

    Args:
        step: the completed step that is saved.
        lossy: moments may be stored rounded, if that makes them fit.
        last: the newest committed checkpoint.
        lower_counts: a restore would take the lower level of this step.
    """

    def __init__(
        self,
        writer: ShardWriter,
        state_tensors: Sequence[StateTensor],
        step: int,
        *,
        lossy: bool = False,
        last: EarlierCheckpoint | None = None,
        lower_counts: bool = False,
    ) -> None:
        self._writer = writer
        self._step = step
        self.lossy = lossy
        self._last = last
        self._lower_counts = lower_counts
        #: Guards the plan: bytes leave on many threads.
        self._lock = threading.Lock()
        #: The present plan, with its reason.
        self.plan = BudgetPlan(BudgetChoice.KEEP, "")
        #: It is decided whether the moments are rounded.
        self._settled = False
        exact = writer.plans.of(state_tensors)
        #: The write plans, by whether moments are rounded.
        self._layouts = {False: exact, True: writer.plans.rounded(state_tensors)} if lossy else {False: exact}
        self._known = writer.plans.known(exact)
        self._sizes = self._sizes_of_tiers()
        self._second_look = writer.second_look(state_tensors, exact)
        self._write_progress: WriteProgress
        self._scope: CancelScope
        self._committed: Callable[[], bool]

    def begin(self, write_progress: WriteProgress, scope: CancelScope, committed: Callable[[], bool]) -> None:
        """Make the plan.

        Args:
            committed: returns whether a level is committed, so that nothing more is decided.

        Raises:
            Abandoned: nothing fits.
        """
        self._write_progress, self._scope, self._committed = write_progress, scope, committed
        self._looked_at = scope.now() + _FIRST_LOOK - _LOOK
        self.plan = plan(self._situation())
        log.debug("the plan: %s", self.plan.reason)
        if self.plan.choice is BudgetChoice.KEEP:
            raise Abandoned(self.plan.reason)

    def choose_layout(self, settled: bool) -> None:
        """Choose the write plan with rounded or unrounded moments, as the plan requires. The weights are the same in both.

        If the moments only follow the committed weights, they are rounded too, as fewer bytes arrive sooner.
        """
        with self._lock:
            self._settled = settled
            rounded = self.lossy and self.plan.choice in (BudgetChoice.FULL_LOSSY, BudgetChoice.LOWER)
            self._write_progress.write_plan = self._layouts[rounded]

    def watch(self) -> None:
        """Keep the moments off the link while the weights are short of time, or must be committed early."""
        if not self._committed():
            self._write_progress.weights_first |= self.plan.lower_first
            self._write_progress.weights_ahead |= self.plan.early

    def see_deadline(self) -> None:
        """Replan if the deadline has moved: on a link that stands still nothing else calls for it."""
        if self._scope.deadline < self._planned_for:
            with self._lock:
                self._look()

    def left(self) -> bool:
        """Note that bytes have left, which may change the plan. Return whether it has changed."""
        with self._lock:
            now = self._scope.now()
            if now - self._looked_at < _LOOK or self._committed():
                return False
            self._looked_at = now
            before = self.plan
            self._look()
            return self.plan != before

    def fall_back(self) -> None:
        """Commit the lower level now."""
        with self._lock:
            reason, end, slack = self.plan.reason, self.plan.end, self.plan.slack
            self.plan = BudgetPlan(BudgetChoice.LOWER, reason, end, slack, lower_first=True)

    # --- inside ---

    def _look(self) -> None:
        """Replan: keep the plan if it still holds, else take a lesser one."""
        before, self.plan = self.plan, replan(self.plan, self._situation(), self._landed())
        if self.plan.reason != before.reason:
            log.debug("the plan changes: %s", self.plan.reason)
        self.watch()

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
        write_progress = self._write_progress
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
        queue: its queue.
        began: monotonic seconds at which its state was taken.
    """

    def __init__(
        self,
        writer: ShardWriter,
        clock: Clock,
        queue: SaveQueue[HostBuffer],
        name: CheckpointName,
        began: float,
    ) -> None:
        self._writer = writer
        self._clock = clock
        self.write_progress = queue.write_progress
        self.name = name
        #: Called with a transient failure of the store that a request beside the upload has met.
        self.heard = queue.hear
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
        write_plan, link, now = (
            self.write_progress.write_plan,
            self._writer.uploads.link,
            self._clock.monotonic(),
        )
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
                self.step, now - self._began, write_plan.nbytes - self.write_progress.bytes_of(ALL)
            ),
            last=last,
        )
