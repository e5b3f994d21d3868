"""An emergency save under its budget: all of it if it fits, else what is worth most first, and never nothing for all.

Objects are put in the order of their tiers, so a full save is a lower one that went on. When time gets short, the
weights that are in the store by then are committed as a checkpoint of the lower level, and the moments follow under
the next name: if all of them arrive, a full manifest refers to the weights where they lie.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ..providers.errors import SpotguardError, StoreError
from .checkpoints.budget import plan, replan
from .checkpoints.draft import ALL, WEIGHTS, Draft, Outline, Written
from .checkpoints.effort import Abandoned, Effort
from .checkpoints.going import Going
from .checkpoints.plans import Choice, Earlier, Landed, Plan, Situation, Sizes
from .checkpoints.work import Progress
from .checkpoints.writer import Writer
from .format.keys import CheckpointName
from .format.leaf import Leaf, Tier
from .format.manifest import Level

log = logging.getLogger("spotguard")

#: Seconds between two looks at whether the plan still holds.
_LOOK = 0.25
#: And until the first: a store's first answer takes its time, and says nothing of the link.
_FIRST_LOOK = 1.0
#: As long as so many objects of the weights are missing, no thread has begun with the moments.
_AHEAD = 12


class EmergencySave:
    """One of them, on the saving thread.

    Args:
        commit: puts the manifest and the marker of a level; raises what a save raises.
        begin: the name of the next checkpoint to be written.
        lossy: moments may be stored rounded, where that makes them fit.
        last: the newest committed checkpoint.
    """

    def __init__(
        self,
        writer: Writer,
        effort: Effort,
        *,
        step: int,
        begin: Callable[[], CheckpointName],
        commit: Callable[[CheckpointName, Level, Written], None],
        look: Callable[[], str],
        lossy: bool = False,
        last: Earlier | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._writer = writer
        self._effort = effort
        self._step = step
        self._begin = begin
        self._commit = commit
        self._moved = look
        self._lossy = lossy
        self._last = last
        self._progress = progress
        self._looked_at = effort.now() + _FIRST_LOOK - _LOOK
        self._going: Going | None = None
        #: What is done, and why.
        self.plan = Plan(Choice.KEEP, "")
        #: The level that is committed, and under which name.
        self.committed: tuple[CheckpointName, Level] | None = None
        #: Why the moments are missing, where they are.
        self._missed = ""

    def run(self, leaves: Sequence[Leaf]) -> Draft:
        """Save what fits. Returns what was written; `committed` says how much of it counts.

        Raises:
            Abandoned: out of time before anything was committed, nothing fits, or the save was called off.
            StoreError: the store failed, and nothing was committed.
            Spoiled: the state moved.
        """
        whole = self._writer.outline(leaves)
        self._rounded = self._writer.outline(leaves, rounded=True) if self._lossy else None
        self._sizes = self._sizes_of(whole, self._rounded)
        self.plan = plan(self._situation())
        log.info("the plan: %s", self.plan.reason)
        if self.plan.choice is Choice.KEEP:
            raise Abandoned(self.plan.reason)
        self._draft = Draft(whole)
        name = self._begin()
        # Whether the moments are rounded is decided when the weights are there.
        for tiers in [ALL] if self._rounded is None else [WEIGHTS, ALL]:
            self._choose_layout()
            name = self._put(leaves, name, tiers)
            if not self._draft.has(tiers):
                return self._draft
        try:
            self._commit(name, "full", self._draft.written(name))
            self.committed = name, "full"
        except (Abandoned, StoreError) as why:
            if self.committed is None or self._effort.abandoned:
                raise
            self._without_moments(why)
        return self._draft

    @property
    def less(self) -> str:
        """Why what is committed is not everything as it stood; "" where it is."""
        if self._missed:
            return f"{self.plan.reason}; the moments: {self._missed}"
        return self.plan.reason if self._draft.outline.rounded else ""

    # --- inside ---

    def _without_moments(self, why: Exception) -> None:
        self._missed = str(why)
        log.warning("step %d is committed without its moments: %s", self._step, why)

    def _put(self, leaves: Sequence[Leaf], name: CheckpointName, tiers: Sequence[Tier]) -> CheckpointName:
        """These tiers into the store, and the lower level committed on the way where it is its turn. Returns the name of
        the next manifest. What did not arrive is missing in the draft: then the lower level is what counts."""
        going = self._going = self._writer.start(
            leaves, name, self._effort, self._hear, self._moved, draft=self._draft, tiers=tiers
        )
        while True:
            try:
                if going.wait(self._turn, self.plan.fall_back_at):
                    return name
            except (Abandoned, StoreError) as why:
                if self._effort.abandoned or self.committed is None:
                    raise
                self._without_moments(why)
                return name
            if self._effort.now() >= self.plan.fall_back_at:
                self._lower_first()
            if self._turn():
                try:
                    self._commit(name, "weights", self._draft.written(name, WEIGHTS))
                except SpotguardError as why:
                    going.call_off(Abandoned(str(why)))
                    raise
                self.committed = name, "weights"
                log.warning("the weights of step %d are committed, its moments follow", self._step)
                name = self._begin()

    def _turn(self) -> bool:
        """Whether the lower level is to be committed now, beside the moments that are on their way."""
        draft = self._draft
        return self.plan.lower_first and self.committed is None and draft.has(WEIGHTS) and not draft.has(ALL)

    def _hear(self, phase: str, done: int, total: int) -> None:
        """On the writer's threads, for each piece that left."""
        if self._progress is not None:
            self._progress(phase, done, total)
        now = self._effort.now()
        if now - self._looked_at < _LOOK or self.committed is not None:
            return
        self._looked_at = now
        before, self.plan = self.plan, replan(self.plan, self._situation(), self._landed())
        if self.plan.reason != before.reason:
            log.info("the plan changes: %s", self.plan.reason)
        if self.plan != before and self._going is not None:
            self._going.wake()

    def _lower_first(self) -> None:
        self.plan = Plan(Choice.LOWER, self.plan.reason, self.plan.end, self.plan.slack, lower_first=True)

    def _choose_layout(self) -> None:
        """Round the moments, or not, as the plan says. The weights are written alike."""
        if self._rounded is not None:
            rounded = self.plan.choice is Choice.FULL_LOSSY
            self._draft.outline = self._rounded if rounded else self._whole

    def _sizes_of(self, whole: Outline, rounded: Outline | None) -> Sizes:
        self._whole = whole
        return Sizes(
            parameters=whole.bytes_of(WEIGHTS),
            moments=whole.bytes_of((Tier.MOMENTS,)),
            rounded=None if rounded is None else rounded.bytes_of((Tier.MOMENTS,)),
            unchanged_parameters=self._writer.unchanged_bytes(whole),
        )

    def _situation(self) -> Situation:
        link, now = self._writer.link, self._effort.now()
        return Situation(
            now=now,
            deadline=self._effort.deadline,
            step=self._step,
            sizes=self._sizes,
            rate=link.rate(now),
            commit=link.commit or 0.0,
            last=self._last,
        )

    def _landed(self) -> Landed:
        return Landed(
            a=self._draft.bytes_of(WEIGHTS),
            b=self._draft.bytes_of((Tier.MOMENTS,)),
            b_begun=len(self._draft.missing(WEIGHTS)) < _AHEAD,
        )
