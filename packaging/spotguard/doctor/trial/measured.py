"""The record of one rank of a trial: the lines that `spotguard.hooks.recorder.measurement` writes, as values."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spotguard.prove.record import Record


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One step: from one boundary to the next."""

    seconds: float
    #: Seconds for which the training thread waited for a loader, and the batches and samples that it got.
    waited: float
    batches: int
    samples: int
    #: How often the training thread was found in each phase.
    phases: Mapping[str, int]


@dataclass(slots=True)
class MeasuredRecord(Record):
    """The record of one rank."""

    steps: list[MeasuredStep] = field(default_factory=list)
    #: The state of training at the end, as in `Position`: step, mode, detail, misuse, unmarked_steps.
    position: Mapping[str, Any] = field(default_factory=dict)
    #: Bytes of all state that the rank holds, and the bytes that it writes of a save of all ranks.
    held: int = 0
    share: int = 0
    #: The peak memory of each GPU.
    devices: Sequence[Mapping[str, Any]] = ()
    #: The classes of the loaders' iterators, with their workers.
    loaders: Mapping[str, int] = field(default_factory=dict)
    #: The saves, by kind: "background", "emergency".
    saves: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Free and needed bytes of the trial's disk, if it had no room for the checkpoints.
    full: Mapping[str, int] = field(default_factory=dict)

    @property
    def last(self) -> int:
        return (self.began or 0) + len(self.steps)

    @property
    def seconds(self) -> list[float]:
        """The seconds of all steps but the first, which compiles and warms up."""
        return [step.seconds for step in self.steps[1:]]

    @property
    def median(self) -> float | None:
        """The median of `seconds`; None for fewer than two steps."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def data_share(self) -> float:
        """The share of all steps but the first for which the training thread waited for a loader."""
        total = sum(self.seconds)
        return sum(step.waited for step in self.steps[1:]) / total if total else 0.0

    def phases(self) -> dict[str, float]:
        """Return the share of each phase in all steps but the first, the largest first."""
        found: Counter[str] = Counter()
        for step in self.steps[1:]:
            found.update(step.phases)
        total = found.total()
        return {phase: number / total for phase, number in found.most_common()} if total else {}

    def _began(self, body: Mapping[str, Any]) -> None:
        self.began = body["step"]

    def _step(self, body: Mapping[str, Any]) -> None:
        self.steps.append(
            MeasuredStep(body["seconds"], body["waited"], body["batches"], body["samples"], body["phases"])
        )

    def _facts(self, body: Mapping[str, Any]) -> None:
        self.position, self.held, self.share = body["position"], body["held"], body["share"]
        self.devices, self.loaders = body["devices"], body["loaders"]

    def _saved(self, body: Mapping[str, Any]) -> None:
        self.saves[body["kind"]] = body

    def _full(self, body: Mapping[str, Any]) -> None:
        self.full = body
