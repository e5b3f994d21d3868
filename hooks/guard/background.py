"""The background checkpoints of a guard: when one begins, and what each one teaches about the interval."""

from __future__ import annotations

from ..save.request import SavedCheckpoint
from ..save.schedule import lost_training, mean_between
from .parts import GuardParts


class BackgroundCheckpoints:
    """The link between the saver and the schedule. Only the first rank begins checkpoints, by its clock, for all ranks.

    Args:
        parts: the parts of the guard.
    """

    def __init__(self, parts: GuardParts) -> None:
        self._parts = parts
        self._looked_back = False

    def begin(self) -> None:
        """Begin the checkpoint that is due. The training thread of the first rank calls it, at its boundary."""
        parts = self._parts
        taken = (
            parts.saver.background()
            if parts.coordinator is None
            else parts.coordinator.background("the interval has passed")
        )
        parts.schedule.begun(parts.clock.monotonic(), taken=taken)

    def saved(self, saved: SavedCheckpoint) -> None:
        """Pass a committed save to history and schedule. The saver thread calls it.

        After the first background save the first rank also reads from the store how often this run was preempted.
        """
        history, schedule = self._parts.history, self._parts.schedule
        cost = lost_training(saved.blocked, saved.seconds) if saved.blocked else None
        beside = history.step_seconds
        history.saved(
            saved.step,
            # A save that the script waits for costs all its time.
            lost_training(saved.blocked, saved.seconds - saved.blocked, *beside)
            if saved.blocked
            else saved.seconds,
        )
        if saved.blocked and not (self._looked_back or self._parts.saver.has_notice or self._parts.rank):
            self._looked_back = True
            starts = self._parts.checkpointer.requests.starts()
            now = self._parts.clock.time()
            schedule.loses_every(mean_between(starts, now, history.committed_attempts))
        schedule.saved(saved.at, saved.seconds, cost)
        history.interval = schedule.interval
