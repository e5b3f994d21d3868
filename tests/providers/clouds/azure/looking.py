"""How the tests of Azure's notices look."""

from __future__ import annotations

from typing import Any, Protocol

from spotguard.providers.clouds.azure.source import AzureScheduledEvents
from spotguard.providers.notice import Notice, Sighting
from spotguard.providers.simulator.azure.service import AzureSimulator
from tests.fakes.clock import ManualClock

#: Seconds for tests in which an answer never comes: each such request takes them all.
IMPATIENT = 0.5


class Looker:
    """A source, and the time it takes from one look to the next."""

    def __init__(self, source: AzureScheduledEvents, clock: ManualClock) -> None:
        self.source = source
        self.clock = clock

    def look(self, after: float = 1.0) -> Sighting:
        self.clock.advance(after)
        return self.source.poll()

    def the_notice(self, after: float = 1.0) -> Notice:
        """Look once, and see exactly one notice."""
        sighting = self.look(after)
        assert sighting.health.seeing, sighting.health
        (notice,) = sighting.notices
        return notice


class Watch(Protocol):
    """Makes the source that looks at a simulated machine, on the machine's own clock."""

    def __call__(self, simulator: AzureSimulator, *, timeout: float = 5.0, **how: Any) -> Looker: ...
