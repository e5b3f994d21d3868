"""A service that refuses because too much is asked is not asked more."""

from __future__ import annotations

import random

import pytest

from spotguard.agent.sources.poller import Poller
from spotguard.providers.health import blind
from spotguard.providers.notice import Sighting
from tests.fakes.clock import ManualClock
from tests.fakes.source import FakeSource

#: 429, as `providers` translate it.
THROTTLED = Sighting(blind("throttled", "429 Too Many Requests", "ask less"))


def polls(source: FakeSource, seconds: float) -> int:
    """How often a watcher asks this source in so many seconds."""
    clock = ManualClock()
    end = clock.monotonic() + seconds
    poller = Poller(source, lambda event: None, clock, random.Random(1))
    while clock.monotonic() < end:
        poller.look()
        clock.advance(poller.delay())
    return source.looks


@pytest.mark.parametrize("interval", [1.0, 5.0, 10.0])
def test_throttled_source_polls_faster(interval: float) -> None:
    """At most as often as while it answers, and a source that is polled each second less often."""
    throttled = FakeSource(interval=interval)
    throttled.sighting = THROTTLED
    healthy = polls(FakeSource(interval=interval), 600.0)
    assert polls(throttled, 600.0) <= healthy * min(1.0, 0.6 * interval)
