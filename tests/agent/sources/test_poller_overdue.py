"""A look that hangs is blindness, said by somebody else: who hangs says nothing."""

from __future__ import annotations

import logging
import os
import queue
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotguard.agent import loop
from spotguard.agent.core.machine import Machine
from spotguard.agent.core.state import Policy
from spotguard.agent.events import Event, HealthChanged, NoticeSeen, Signalled
from spotguard.agent.ipc import control
from spotguard.agent.ipc.client import AgentClient
from spotguard.agent.sources.poller import CHECK_EVERY, GRACE, LONGEST_WAIT, PollDeadline, Poller
from spotguard.agent.telemetry.status import AgentFacts
from spotguard.hooks.ipc import protocol
from spotguard.providers.health import SEEING
from spotguard.providers.notice import Sighting
from tests.fakes.clock import ManualClock
from tests.fakes.serving import Events, Serving
from tests.fakes.source import FakeSource, a_notice

#: Real seconds, as a net.
_TIMEOUT = 100.0


class Stuck(FakeSource):
    """One that hangs as long as a test says, as a read from a file server does that is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = False
        self.looking = threading.Semaphore(0)
        self.answer = threading.Semaphore(0)

    def poll(self) -> Sighting:
        self.looking.release()
        if self.hangs:
            assert self.answer.acquire(timeout=_TIMEOUT)
        return super().poll()


class Hanging:
    """A watcher on a clock that only the test moves, whose second look hangs."""

    def __init__(self, events: queue.SimpleQueue[Event] | None = None) -> None:
        self.clock = ManualClock()
        self.source = Stuck()
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue() if events is None else events
        self.poller = Poller(self.source, self.events.put, self.clock, random.Random(1))

    def __enter__(self) -> Hanging:
        self.poller.start()
        assert self.source.looking.acquire(timeout=_TIMEOUT)
        assert self.clock.wait_for_waiters()
        self.source.hangs = True
        self.clock.advance(self.source.interval)
        assert self.source.looking.acquire(timeout=_TIMEOUT)
        return self

    def __exit__(self, *_: object) -> None:
        self.source.hangs = False
        self.source.answer.release()
        self.poller.stop(_TIMEOUT)
        assert self.source.closed_by is not None

    def check(self) -> list[Event]:
        """What is new since the last time, and by this count."""
        self.poller.check(self.clock.monotonic())
        said = []
        while not self.events.empty():
            said.append(self.events.get())
        return said


def test_a_look_may_take_as_long_as_its_source_says() -> None:
    """A GET that is held for 25 s is late after 30; a file after some seconds. Each from the end of the last look, and
    the pause that follows it."""
    for longest, pause in ((25.0, 2.0), (0.0, 10.0)):
        looks = PollDeadline(longest, 100.0)
        assert looks.problem(100.0 + longest + GRACE - 0.1) is None
        assert looks.problem(100.0 + longest + GRACE) is not None
        looks.ended(200.0, pause)
        assert looks.problem(200.0 + pause + longest + GRACE - 0.1) is None
        late = looks.problem(200.0 + pause + longest + GRACE)
        assert late is not None
        assert (late.seeing, late.reason) == (False, "overdue")
        assert late.detail.startswith(f"no answer for {pause + longest + GRACE:.0f} s")
        assert late.advice


def test_a_source_that_hangs_is_blind_until_it_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    """Its last word was that it sees. The age of that is said anew at each count, and logged once a minute."""
    with caplog.at_level(logging.INFO, "spotguard"), Hanging() as hanging:
        hanging.check()
        hanging.clock.advance(LONGEST_WAIT + hanging.source.longest)
        assert hanging.check() == [], "late, as a busy machine may be"
        hanging.clock.advance(GRACE)
        (lost,) = hanging.check()
        assert isinstance(lost, HealthChanged)
        assert (lost.health.sight, lost.health.reason) == ("blind", "overdue")
        assert lost.health.detail.startswith("no answer for 10 s")
        hanging.clock.advance(CHECK_EVERY)
        (again,) = hanging.check()
        assert isinstance(again, HealthChanged)
        assert again.health.detail.startswith("no answer for 12 s")
        assert again.since == lost.since

        hanging.source.shows(a_notice())
        hanging.source.answer.release()
        seeing, notice = hanging.events.get(timeout=_TIMEOUT), hanging.events.get(timeout=_TIMEOUT)
        assert isinstance(seeing, HealthChanged)
        assert seeing.health == SEEING
        assert notice == NoticeSeen(a_notice())
        assert hanging.check() == []
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "fake source: seeing"
    assert said[1].startswith("fake source: blind (overdue): no answer for 10 s")
    assert said[2:] == ["fake source: seeing (again, after 2 s)"]


def test_the_first_look_may_be_the_one_that_hangs() -> None:
    """Nothing has been seen, and `starting` does not stay for ever."""
    clock, events = ManualClock(), list[Event]()
    poller = Poller(FakeSource(), events.append, clock, random.Random(1))
    clock.advance(60.0)
    poller.check(clock.monotonic())
    (lost,) = events
    assert isinstance(lost, HealthChanged)
    assert lost.health.reason == "overdue"


def test_a_stopped_poller_posts_nothing_more() -> None:
    """Neither that it hangs, nor what it sees when it comes back: others look in its place."""
    with Hanging() as hanging:
        hanging.check()
        hanging.poller.stop()
        hanging.clock.advance(600.0)
        hanging.source.shows(a_notice())
        assert hanging.check() == []
    assert hanging.check() == []


def test_status_and_who_watches_are_told_of_it(serve: Serving, events: Events) -> None:
    """By a real agent at its socket: blind within the time that a look may take, and seeing again."""
    with Hanging(events.queue) as hanging:
        server, machine = serve(), Machine(Policy(command=False))
        facts = AgentFacts("s", os.getpid(), str(server.path), True, 0.0, 1)
        watches = [hanging.poller]
        agent = loop.Agent(machine, server, hanging.clock, hanging.events, facts, watches=watches)
        thread = threading.Thread(target=agent.run)
        thread.start()
        try:
            _until(lambda: _shown(server.path)["sight"] == "seeing")
            hanging.clock.advance(60.0)
            _until(lambda: _shown(server.path)["reason"] == "overdue")
            caller = AgentClient(server.path, protocol.Watch(os.getpid()), _TIMEOUT)
            heard = [caller.receive(_TIMEOUT), caller.receive(_TIMEOUT)]
            caller.close()
            assert isinstance(heard[1], protocol.FeedHealth)
            assert (heard[1].sight, heard[1].reason) == ("blind", "overdue")
            hanging.source.answer.release()
            _until(lambda: _shown(server.path)["sight"] == "seeing")
        finally:
            hanging.events.put(Signalled(signal.SIGTERM))
            thread.join(_TIMEOUT)
        assert not thread.is_alive()


def _shown(path: Path) -> dict[str, Any]:
    """The one source, as `status` has it; nothing yet before it has said anything."""
    sources = control.status(path)["sources"]
    return dict(sources[0]) if sources else {"sight": "", "reason": ""}


def _until(is_so: Callable[[], bool]) -> None:
    never, end = threading.Event(), time.monotonic() + _TIMEOUT
    while not is_so():
        assert time.monotonic() < end
        never.wait(0.001)
