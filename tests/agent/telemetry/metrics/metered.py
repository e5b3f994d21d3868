"""What the meter's tests count: the life of an agent, lived by hand, and what a scrape of it shows."""

from __future__ import annotations

from typing import Any

from spotguard.agent.actions import Publish
from spotguard.agent.core.machine import Machine
from spotguard.agent.core.state import Policy
from spotguard.agent.events import Event, Heard, NoticeSeen, Opened
from spotguard.agent.outcome import Outcome
from spotguard.agent.sources.poller import PollCount
from spotguard.agent.telemetry.metrics.definitions import METRICS
from spotguard.agent.telemetry.metrics.histogram import Histogram
from spotguard.agent.telemetry.metrics.recorder import MetricsRecorder
from spotguard.agent.telemetry.metrics.scrape import MetricsFacts, Scrape
from spotguard.hooks.ipc.protocol import Register
from spotguard.providers.health import blind
from tests.fakes.source import a_notice

UNREACHABLE = blind("unreachable", "refused")


class Life:
    """A real machine with a meter beside it, as the loop has them, by hand."""

    def __init__(self, *, command: bool = False, window: float | None = None) -> None:
        self.machine = Machine(Policy(command=command, window=window))
        self.meter = MetricsRecorder()
        self.looks = PollCount()
        self.now = 1000.0
        self.outcomes: list[Outcome] = []
        self.facts = MetricsFacts("1", "agent", "r", 30.0, False, None)

    def happens(self, *events: Event | None, after: float = 0.0) -> None:
        self.now += after
        for event in events:
            for action in self.machine.handle(event, self.now):
                if isinstance(action, Publish):
                    self.outcomes.append(action.outcome)
                    self.meter.ended(action.outcome.summary())
            self.meter.take(event, self.machine, self.now)

    def joins(self, number: int = 1, *, run_id: str = "r", rank: int = 0, uid: int = 0, **more: Any) -> None:
        register = Register(100 + number, run_id, "train.py", "file:///s", rank=rank, **more)
        self.happens(Opened(number, 100 + number, uid, register))

    def says(self, message: Any, number: int = 1, *, after: float = 0.0) -> None:
        self.happens(Heard(number, message), after=after)

    def value(self, name: str, *labels: str) -> Any:
        """Of one sample; None where it is not there."""
        reading = Scrape(self.facts, self.meter.newest, self.now, self.looks.totals)
        metric = next(metric for metric in METRICS if metric.name == name)
        samples = list(metric.read(reading))
        assert all(len(each) == len(metric.labels) for each, _ in samples)
        assert len(dict(samples)) == len(samples), "a series twice in one scrape"
        return dict(samples).get(labels)

    def left_at(self, stage: str, drill: str = "false") -> float:
        """Seconds that were left at this stage, where it was reached once."""
        histogram: Histogram = self.value("spotguard_stage_left_seconds", stage, drill)
        assert sum(histogram.counts) == 1, histogram
        return histogram.sum


def notice(id: str = "n1", left: float = 120.0, seen: float = 1000.0) -> NoticeSeen:
    return NoticeSeen(a_notice(id, deadline=seen + left, seen_at=seen), 0.9)
