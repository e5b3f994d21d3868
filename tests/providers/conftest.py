"""A simulated instance on a clock by hand, and the source that looks at it; and answers without a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from responses import RequestsMock

from spotguard.providers.clouds.aws.imds import AwsImds
from spotguard.providers.clouds.aws.source import AwsSource
from spotguard.providers.clouds.aws.spot import InstanceAction
from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.fakes.clock import ManualClock
from tests.fixtures_simulator import SimulateAws
from tests.providers.clouds.aws.curl import Client
from tests.providers.clouds.looking import MakeSource


@pytest.fixture
def canned() -> Iterator[RequestsMock]:
    """Answers for whoever asks at `CANNED`. A request that has none fails the test."""
    with RequestsMock(assert_all_requests_are_fired=False) as canned:
        yield canned
        assert [call.request.url for call in canned.calls if isinstance(call.response, Exception)] == []


@pytest.fixture
def watch() -> Iterator[MakeSource]:
    """As `MakeSource` says; the sources are closed when the test ends."""
    with ExitStack() as closing:

        def make(
            simulator: AwsSimulator, kind: type[AwsSource] = InstanceAction, *, timeout: float = 5.0
        ) -> AwsSource:
            imds = AwsImds(simulator.endpoint, simulator.clock, instance="i-0123", timeout=timeout)
            source = kind(imds, simulator.clock)
            closing.callback(source.close)
            return source

        yield make


@pytest.fixture
def instance(simulate_aws: SimulateAws, clock: ManualClock) -> AwsSimulator:
    """A simulated instance on the clock by hand."""
    return simulate_aws(clock)


@pytest.fixture
def client(instance: AwsSimulator) -> Iterator[Client]:
    """Talks to the instance on the clock by hand."""
    client = Client(instance)
    yield client
    client.session.close()
