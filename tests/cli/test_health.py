"""Never blind without saying so: what goes wrong with each cloud's metadata service reaches the person, in words.

From the service's own fault, over a real socket, by the source and its watcher, into the log, the JSON of `status` and
what `status` shows.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import get_args

import pytest

from spotguard.agent.config.resolve import resolve
from spotguard.agent.events import Event, HealthChanged
from spotguard.agent.sources.factory import cloud_sources
from spotguard.agent.sources.feed import Feed
from spotguard.agent.sources.poller import Poller
from spotguard.cli.status import view
from spotguard.providers.clock import SystemClock
from spotguard.providers.health import Reason
from spotguard.providers.simulator.aws.service import AwsSimulator
from spotguard.providers.simulator.azure.service import AzureSimulator
from spotguard.providers.simulator.base import Simulator
from spotguard.providers.simulator.gcp.service import GcpSimulator
from tests.cli.status.test_view import a_body

SIMULATORS: dict[str, Callable[[], Simulator]] = {
    "aws": AwsSimulator,
    "gcp": GcpSimulator,
    "azure": lambda: AzureSimulator(enabling=0.0, limit=None),
    "azure that is being switched on": lambda: AzureSimulator(enabling=600.0),
    "gcp seen from a pod": lambda: GcpSimulator(gke=True),
}

#: A service, the fault that is on, and why its source does not see then.
CASES = [
    ("aws", "401", "unauthorized"),
    ("aws", "403", "forbidden"),
    ("aws", "429", "throttled"),
    ("aws", "503", "server-error"),
    ("aws", "hop-limit", "hop-limit"),
    ("aws", "portal", "wrong-server"),
    ("aws", "reset", "unreachable"),
    ("gcp", "403", "forbidden"),
    ("gcp", "429", "throttled"),
    ("gcp", "503", "server-error"),
    ("gcp", "flavor", "wrong-server"),
    ("gcp", "garbage", "garbage"),
    ("gcp", "hang", "timeout"),
    ("gcp", "reset", "unreachable"),
    ("gcp seen from a pod", "", "missing-key"),
    ("azure", "410", "server-error"),
    ("azure", "429", "throttled"),
    ("azure", "garbage", "garbage"),
    ("azure", "redirect", "wrong-server"),
    ("azure", "reset", "unreachable"),
    ("azure that is being switched on", "", "starting"),
]


@pytest.mark.parametrize(("service", "fault", "reason"), CASES)
def test_why_a_source_does_not_see_reaches_the_person(
    service: str, fault: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """At the first look, with what was seen and what to do."""
    clock, events = SystemClock(), list[Event]()
    with SIMULATORS[service]() as simulator, caplog.at_level(logging.INFO, "spotguard"):
        if fault:
            simulator.fault(fault)
        said = resolve("agent", {"provider": service.split()[0], "metadata-endpoint": simulator.endpoint}, {})
        sources = cloud_sources(said, clock)()
        try:
            Poller(sources[0], events.append, clock, random.Random(1)).look()
        finally:
            for source in sources:
                source.close()
    feed = Feed(1)
    for event in events:
        assert isinstance(event, HealthChanged)
        list(feed.take(event, clock.monotonic()))

    (shown,) = feed.status(clock.monotonic())
    assert (shown["reason"], shown["sight"] == "seeing") == (reason, False)
    assert shown["detail"]
    assert shown["advice"]
    (line,) = [record.getMessage() for record in caplog.records if record.name == "spotguard.agent"]
    assert line.startswith(f"{shown['name']}: {shown['sight']}")
    assert line.endswith(f": {shown['detail']}; {shown['advice']}")
    for width in (None, 80):
        lines = [words for words, _ in view.lines(a_body(sources=[shown]), datetime.now(UTC), width)]
        text = " ".join(" ".join(lines).split())
        assert f"{shown['name']} {shown['sight'].upper()} for 0 s ({reason})" in text
        assert f" {reason} {' '.join(shown['detail'].split())} " in text
        assert f" what to do {shown['advice']} " in text


def test_every_reason_is_tried() -> None:
    """Two are no cloud's: `unguarded` is the service agent's (tests/agent/sources/test_remote_unguarded.py), `overdue` is said of
    a look that does not come back (tests/agent/sources/test_poller_overdue.py)."""
    assert {reason for _, _, reason in CASES} == {*get_args(Reason)} - {"", "unguarded", "overdue"}
