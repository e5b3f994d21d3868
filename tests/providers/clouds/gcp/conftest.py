"""A simulated VM on a clock by hand, and the hanging GET that looks at it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spotguard.providers.clouds.gcp.preempted import PreemptedAtOnce
from spotguard.providers.simulator.gcp.service import GcpSimulator
from tests.fakes.clock import ManualClock
from tests.fixtures_simulator import SimulateGcp
from tests.providers.clouds.gcp.looking import at_once


@pytest.fixture
def vm(simulate_gcp: SimulateGcp, clock: ManualClock) -> GcpSimulator:
    """A simulated VM on the clock by hand."""
    return simulate_gcp(clock)


@pytest.fixture
def source(vm: GcpSimulator) -> Iterator[PreemptedAtOnce]:
    """The hanging GET."""
    with at_once(vm) as source:
        yield source
