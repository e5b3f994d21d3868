"""Fixtures for every room's tests: simulated metadata services, and a clock by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest

from spotguard.providers.simulator.aws.service import AwsSimulator
from spotguard.providers.simulator.azure.service import AzureSimulator
from spotguard.providers.simulator.gcp.service import GcpSimulator
from tests.fakes.clock import ManualClock


class SimulateAws(Protocol):
    """Starts an `AwsSimulator` with its arguments; it is stopped when the test ends."""

    def __call__(self, *arguments: Any, **options: Any) -> AwsSimulator: ...


class SimulateAzure(Protocol):
    """Starts an `AzureSimulator` with its arguments; it is stopped when the test ends."""

    def __call__(self, *arguments: Any, **options: Any) -> AzureSimulator: ...


class SimulateGcp(Protocol):
    """Starts a `GcpSimulator` with its arguments; it is stopped when the test ends."""

    def __call__(self, *arguments: Any, **options: Any) -> GcpSimulator: ...


@pytest.fixture
def simulate_aws() -> Iterator[SimulateAws]:
    """As many simulated instances as a test wants."""
    with ExitStack() as running:
        yield lambda *arguments, **options: running.enter_context(AwsSimulator(*arguments, **options))


@pytest.fixture
def aws(simulate_aws: SimulateAws) -> AwsSimulator:
    """One simulated instance, on the machine's own time."""
    return simulate_aws()


@pytest.fixture
def simulate_azure() -> Iterator[SimulateAzure]:
    """As many simulated machines as a test wants."""
    with ExitStack() as running:
        yield lambda *arguments, **options: running.enter_context(AzureSimulator(*arguments, **options))


@pytest.fixture
def simulate_gcp() -> Iterator[SimulateGcp]:
    """As many simulated VMs of Compute Engine as a test wants."""
    with ExitStack() as running:
        yield lambda *arguments, **options: running.enter_context(GcpSimulator(*arguments, **options))


@pytest.fixture
def gcp(simulate_gcp: SimulateGcp) -> GcpSimulator:
    """One simulated VM, on the machine's own time."""
    return simulate_gcp()


@pytest.fixture
def clock() -> ManualClock:
    """Time that moves when the test says so."""
    return ManualClock()
