"""A source whose answers set the pace: while it is blind, the watcher's own back-off is what decides when it looks."""

from __future__ import annotations

import random

from spotguard.agent.events import Event
from spotguard.agent.sources.poller import Poller
from spotguard.providers.clouds.gcp.long_poll import RETRY
from spotguard.providers.health import blind
from spotguard.providers.notice import Sighting
from tests.fakes.clock import ManualClock
from tests.fakes.source import FakeSource


def test_s8d_a_storm_is_looked_through_at_once_and_then_every_second() -> None:
    """A 503 may be over before the next request; and however long it lasts, what came meanwhile is seen within a
    second of its end."""
    source = FakeSource(interval=RETRY)
    events: list[Event] = []
    poller = Poller(source, events.append, ManualClock(), random.Random(1))
    poller.look()
    assert poller.delay() == RETRY
    source.sighting = Sighting(blind("server-error", "503"))
    delays = []
    for _ in range(2000):
        poller.look()
        delays.append(poller.delay())
    assert max(delays) < 1.0
    assert sum(delays[:7]) < 0.2
    assert min(delays[10:]) > 0.8, "a server in trouble is not asked faster than once a second"
