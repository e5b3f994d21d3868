"""The life of an agent, lived by hand, and what a scrape of its metrics shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from spotguard.agent.actions import Publish
from spotguard.agent.core.machine import Machine
from spotguard.agent.core.state import Policy
from spotguard.agent.events import Event, Heard, NoticeSeen, Opened
from spotguard.agent.outcome import Outcome
from spotguard.agent.telemetry.metrics.definitions import METRICS
from spotguard.agent.telemetry.metrics.processes import ExpectedWindow
from spotguard.agent.telemetry.metrics.recorder import MetricsFacts, MetricsRecorder
from spotguard.hooks.ipc.protocol import Register
from spotguard.providers.health import blind
from tests.fakes.source import a_notice

UNREACHABLE = blind("unreachable", "refused")

LABELS = {metric.name: metric.labels for metric in METRICS}


class Life:
    """A real machine with a recorder beside it, as the loop has them, by hand."""

    def __init__(
        self, *, command: bool = False, window: float | None = None, reserve: float | None = None
    ) -> None:
        self.machine = Machine(Policy(command=command, window=window))
        self.now = 1000.0
        self.outcomes: list[Outcome] = []
        self.registry = CollectorRegistry()
        facts = MetricsFacts("1", "agent", "r", ExpectedWindow(window or 30.0, window is not None, reserve))
        #: Called in the middle of each scrape.
        self.scraped: Callable[[], None] = lambda: None
        self.meter = MetricsRecorder(self.registry, facts, self.monotonic)

    def monotonic(self) -> float:
        self.scraped()
        return self.now

    def happens(self, *events: Event | None, after: float = 0.0) -> None:
        self.now += after
        for event in events:
            for action in self.machine.handle(event, self.now):
                if isinstance(action, Publish):
                    self.outcomes.append(action.outcome)
                    self.meter.ended(action.outcome.summary())
            self.meter.take(event, self.machine, self.now)

    def passes(self, seconds: float) -> None:
        """Let time go by, in which the loop wakes and nothing happens."""
        self.now += seconds
        self.meter.take(None, self.machine, self.now)

    def joins(self, number: int = 1, *, run_id: str = "r", rank: int = 0, uid: int = 0, **more: Any) -> None:
        register = Register(100 + number, run_id, "train.py", "file:///s", rank=rank, **more)
        self.happens(Opened(number, 100 + number, uid, register))

    def says(self, message: Any, number: int = 1, *, after: float = 0.0) -> None:
        self.happens(Heard(number, message), after=after)

    def samples(self) -> dict[tuple[str, ...], float]:
        """Return what a scrape shows now: each number by its name and the values of its labels, in the table's order."""
        found: dict[tuple[str, ...], float] = {}
        for family in text_string_to_metric_families(generate_latest(self.registry).decode()):
            for sample in family.samples:
                name = sample.name
                if family.type == "histogram":
                    name = name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
                values = [sample.labels[label] for label in LABELS[name]]
                key = (sample.name, *values, *([sample.labels["le"]] if "le" in sample.labels else []))
                assert key not in found, "a series twice in one scrape"
                assert len(sample.labels) == len(key) - 1
                found[key] = sample.value
        return found

    def value(self, name: str, *labels: str) -> Any:
        """Return one number; None if a scrape does not show it."""
        return self.samples().get((name, *labels))

    def left_at(self, stage: str, drill: str = "false") -> float:
        """Seconds that were left at this stage, which was reached once."""
        samples = self.samples()
        assert samples["spotguard_stage_left_seconds_count", stage, drill] == 1
        return samples["spotguard_stage_left_seconds_sum", stage, drill]


def notice(id: str = "n1", left: float = 120.0, seen: float = 1000.0) -> NoticeSeen:
    return NoticeSeen(a_notice(id, deadline=seen + left, seen_at=seen), 0.9)
