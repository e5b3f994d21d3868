"""A service that refuses because too much is asked is not asked more."""

from __future__ import annotations

import random

import pytest

from spotguard.agent.watcher import Watcher
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
    watcher = Watcher(source, lambda event: None, clock, random.Random(1))
    while clock.monotonic() < end:
        watcher.look()
        clock.advance(watcher.delay())
    return source.looks


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="A source that is polled every 10 s is polled every 2 s as long as it answers 429.",
)
@pytest.mark.parametrize("interval", [5.0, 10.0])
def test_throttled_source_polls_faster(interval: float) -> None:
    """AWS's maintenance events, GCP's upcoming maintenance: at most as often as while they answer."""
    throttled = FakeSource(interval=interval)
    throttled.sighting = THROTTLED
    assert polls(throttled, 600.0) <= polls(FakeSource(interval=interval), 600.0)
