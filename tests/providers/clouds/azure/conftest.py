"""A simulated machine of a scale set on a clock by hand, and the source that looks at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from spotguard.providers.clouds.azure.imds import AzureImds
from spotguard.providers.clouds.azure.source import AzureScheduledEvents
from spotguard.providers.simulator.azure.service import AzureSimulator
from tests.fakes.clock import ManualClock
from tests.fixtures_simulator import SimulateAzure
from tests.providers.clouds.azure.looking import Looker, Watch


@pytest.fixture
def watch(clock: ManualClock) -> Iterator[Watch]:
    """As `Watch` says; the sources are closed when the test ends."""
    with ExitStack() as closing:

        def make(simulator: AzureSimulator, *, timeout: float = 5.0, **how: Any) -> Looker:
            source = AzureScheduledEvents(AzureImds(simulator.endpoint, clock, timeout=timeout), clock, **how)
            closing.callback(source.close)
            return Looker(source, clock)

        yield make


@pytest.fixture
def vm(simulate_azure: SimulateAzure, clock: ManualClock) -> AzureSimulator:
    """A simulated machine on the clock by hand, whose events are on."""
    return simulate_azure(clock, enabling=0)
