"""A background save that is under way when a notice comes: called off, or let finish where its rest is worth more."""

from __future__ import annotations

import logging

from ..providers.clock import Clock
from .checkpoints.budget import plan, replan
from .checkpoints.draft import ALL, WEIGHTS, Draft
from .checkpoints.plans import Choice, Earlier, Landed, Plan, Situation, Sizes, Underway
from .checkpoints.writer import Writer
from .format.leaf import Tier

log = logging.getLogger("spotguard")


class Upload:
    """Its bytes are on their way. Asked at the notice, when the deadline moves, and as bytes leave.

    Args:
        draft: what is in the store of it.
        began: monotonic seconds at which its state was taken.
    """

    def __init__(self, writer: Writer, clock: Clock, draft: Draft, step: int, began: float) -> None:
        self._writer = writer
        self._clock = clock
        self._draft = draft
        self.step = step
        self._began = began
        self._plan: Plan | None = None

    def promotes(self, step: int, deadline: float, last: Earlier | None) -> str:
        """Why it is worth more, by `deadline`, than a new save of `step`; "" where it is not.

        Where nothing fits it may go on, too: trying loses nothing, and nothing else would be done with the time.
        """
        at, before = self._situation(step, deadline, last), self._plan
        decided = plan(at) if before is None or before.choice is Choice.KEEP else replan(before, at, Landed())
        newer = last is None or self.step > last.step
        why = ""
        if decided.choice is Choice.PROMOTE:
            why = decided.reason
        elif decided.choice is Choice.KEEP and newer:
            why = (
                f"the background checkpoint of step {self.step} is tried, for nothing fits: {decided.reason}"
            )
        if before is None or before.choice is not decided.choice:
            log.warning("the plan: %s", why or decided.reason)
        self._plan = decided
        return why

    def _situation(self, step: int, deadline: float, last: Earlier | None) -> Situation:
        outline, link, now = self._draft.outline, self._writer.link, self._clock.monotonic()
        return Situation(
            now=now,
            deadline=deadline,
            step=step,
            sizes=Sizes(
                outline.bytes_of(WEIGHTS),
                outline.bytes_of((Tier.MOMENTS,)),
                unchanged_parameters=self._writer.unchanged_bytes(outline),
            ),
            rate=link.rate(now),
            commit=link.commit or 0.0,
            commit_at_best=link.commit_at_best or 0.0,
            background=Underway(self.step, now - self._began, outline.nbytes - self._draft.bytes_of(ALL)),
            last=last,
        )
