"""A cloud's keys that go blind together make no five lines of one thing, and none of them is silent."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import pytest

from spotguard.agent.events import Event
from spotguard.agent.sources.health_log import CommonHealth
from spotguard.agent.sources.poller import Poller
from spotguard.providers.health import SEEING, Health, blind, wrong_server
from spotguard.providers.notice import Sighting
from tests.fakes.clock import ManualClock
from tests.fakes.source import FakeSource

NAMES = ("aws end", "aws one", "aws two")


class Cloud:
    """Watchers of one service, and what the log says of them."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.clock, self.events = ManualClock(), list[Event]()
        self._log, common_health = caplog, CommonHealth(NAMES[0])
        self.sources: dict[str, FakeSource] = {}
        self.pollers: dict[str, Poller] = {}
        for name in NAMES:
            self.sources[name] = source = FakeSource()
            source.name = name
            self.pollers[name] = Poller(
                source, self.events.append, self.clock, random.Random(1), common_health
            )

    def look(self, health: Health | None, *names: str) -> list[str]:
        """What is logged when these look and see this (None: what they see already)."""
        return self._said(lambda name: self._look(name, health), names or NAMES)

    def wait(self, seconds: float) -> list[str]:
        """What is logged by the main loop after so long."""
        self.clock.advance(seconds)
        return self._said(lambda name: self.pollers[name].check(self.clock.monotonic()), NAMES)

    def _look(self, name: str, health: Health | None) -> None:
        if health is not None:
            self.sources[name].sighting = Sighting(health)
        self.pollers[name].look()

    def _said(self, do: Callable[[str], None], names: tuple[str, ...]) -> list[str]:
        self._log.clear()
        with self._log.at_level(logging.INFO, "spotguard"):
            for name in names:
                do(name)
        return [record.getMessage() for record in self._log.records]


def refused(key: str) -> Health:
    return blind("unreachable", f"GET {key}: refused", "is it on?")


def test_a_cause_common_to_all_sources_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At once by the one that matters, and soon by the others. Each has words of its own, the way out is the same."""
    cloud = Cloud(caplog)
    said = [line for name in NAMES for line in cloud.look(refused(name), name)]
    assert said == ["aws end: blind (unreachable): GET aws end: refused; is it on?"]
    assert cloud.wait(0.5) == [], "others may follow"
    assert cloud.wait(0.5) == ["aws one, aws two: blind (unreachable), as aws end is"]
    assert cloud.wait(2.0) == []
    for _ in range(60):
        cloud.clock.advance(1.0)
        said = cloud.look(None)
        if said:
            break
    assert said == ["aws end: still blind (unreachable): GET aws end: refused; is it on? after 60 s"]
    cloud.look(None)
    assert cloud.wait(2.0) == ["aws one, aws two: still blind (unreachable), as aws end is"]
    assert len(cloud.events) == len(NAMES), "what is shown and told is told of each, and when it is so"


def test_without_the_first_the_others_speak_in_full(caplog: pytest.LogCaptureFixture) -> None:
    cloud = Cloud(caplog)
    assert cloud.look(refused("two"), "aws two") == []
    assert cloud.look(blind("unreachable", "GET one: refused", "another way out"), "aws one") == []
    assert cloud.wait(1.0) == [
        "aws two: blind (unreachable): GET two: refused; is it on?",
        "aws one: blind (unreachable): GET one: refused; another way out",
    ]


def test_a_cause_of_one_key_is_logged_by_that_key_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """So is what it says when it sees."""
    cloud = Cloud(caplog)
    garbage = blind("garbage", "no time in it", "report it")
    said = cloud.look(garbage, "aws one", "aws two")
    assert said == [f"{name}: blind (garbage): no time in it; report it" for name in NAMES[1:]]
    assert cloud.look(SEEING, "aws one")[0].startswith("aws one: seeing (again")


def test_a_source_that_changed_meanwhile_is_not_logged_as_before(caplog: pytest.LogCaptureFixture) -> None:
    cloud = Cloud(caplog)
    assert cloud.look(refused("x"), "aws one", "aws two") == []
    cloud.look(wrong_server("a portal", "log in"), "aws two")
    assert cloud.wait(1.0) == [
        "aws one: blind (unreachable): GET x: refused; is it on?",
        "aws two: wrong server: a portal; log in",
    ]
