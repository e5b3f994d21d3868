"""One event of a run, as every tracker gets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrackerMark:
    """One event of a run.

    Attributes:
        kind: "checkpoint", "preempted" or "resumed".
        step: completed steps at the event.
        at: wall seconds of the event.
        values: its numbers, by name.
        text: a sentence about it; "" for a checkpoint.
        record: for a preemption, the beginning of the keys of its outcome records in the store.
    """

    kind: str
    step: int
    at: float
    values: Mapping[str, float]
    text: str = ""
    record: str = ""

    @property
    def numbers(self) -> dict[str, float]:
        """The values by the names that every tracker shows."""
        return {f"spotguard/{self.kind}/{name}": value for name, value in self.values.items()}
