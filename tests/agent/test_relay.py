"""A run lets the service agent poll: real server on a real socket, as it comes, goes, dies and lies."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotguard.agent.events import (
    Event,
    HealthChanged,
    NoticeGone,
    NoticeSeen,
    SourceGone,
    Watching,
    WindowTold,
)
from spotguard.agent.relay import NAME, Relay
from spotguard.agent.watcher import Watcher
from spotguard.hooks import protocol
from spotguard.providers.clock import SystemClock
from spotguard.providers.health import Sight
from spotguard.providers.notice import Notice, NoticeKind, Severity
from tests.fakes.serving import Events, Serving
from tests.fakes.source import FakeSource

WATCHED = protocol.Watched(1)
SEEING = protocol.HealthSeen("aws", "seeing")
NEVER = threading.Event()


class Relayed:
    """A relay, what it posts, and the sources that it looks through when it has to look itself."""

    def __init__(self, path: Path, *, any_source: bool = True, withdraws: bool = False, **more: Any) -> None:
        self.events = Events()
        self.clock = SystemClock()
        self.any_source, self.withdraws = any_source, withdraws
        #: What stands where our own sources look.
        self.stands: tuple[Notice, ...] = ()
        self.own: list[FakeSource] = []
        post = self.events.queue.put
        self.relay = Relay(path, post, self.clock, random.Random(1), self._watchers, **more)
        self.relay.start()

    def _watchers(self, post: Callable[[Event], None]) -> list[Watcher]:
        if not self.any_source:
            return []
        self.own.append(FakeSource(interval=0.01, withdraws=self.withdraws))
        self.own[-1].shows(*self.stands)
        return [Watcher(self.own[-1], post, self.clock, random.Random(1))]

    def health(self, source: str, sight: Sight) -> HealthChanged:
        return self.events.next(HealthChanged, lambda e: e.source == source and e.health.sight is sight)


@pytest.fixture
def relayed(folder: Path) -> Iterator[Relayed]:
    relayed = Relayed(folder / "a.sock")
    yield relayed
    relayed.relay.stop(timeout=30)


def test_what_the_service_sees_is_said_here_too(
    serve: Serving, events: Events, relayed: Relayed, caplog: pytest.LogCaptureFixture
) -> None:
    """Since when, what a seeing source has to add, and all of it in this run's own log: the service's is not read by
    whoever runs here. Said again with each sign of life, it is logged once."""
    server = serve()
    watcher = events.next(Watching).session
    with caplog.at_level(logging.INFO, "spotguard"):
        server.send(watcher, WATCHED)
        blind = protocol.HealthSeen("aws", "blind", "hop-limit", "no answer", "raise it", 3600.0)
        for _ in range(3):
            server.send(watcher, blind)
        lost = relayed.health("aws", Sight.BLIND)
        server.send(watcher, protocol.HealthSeen("aws", "seeing", detail="stale, no notice"))
        assert relayed.health("aws", Sight.SEEING).health.detail == "stale, no notice"
    assert 3600.0 <= relayed.clock.monotonic() - lost.since < 3630.0
    said = [record.getMessage() for record in caplog.records]
    assert [line for line in said if line.startswith("aws, through")] == [
        "aws, through the service agent: blind (hop-limit): no answer; raise it",
        "aws, through the service agent: seeing; stale, no notice (again, after 0 s)",
    ]


def test_what_keeps_all_sources_out_is_said_together(
    serve: Serving, events: Events, relayed: Relayed, caplog: pytest.LogCaptureFixture
) -> None:
    """The first at once, the others in one line, when the main loop comes by."""
    server = serve()
    watcher = events.next(Watching).session
    with caplog.at_level(logging.INFO, "spotguard"):
        server.send(watcher, WATCHED)
        for source in ("aws", "aws a", "aws b"):
            server.send(watcher, protocol.HealthSeen(source, "blind", "timeout", "no answer", "look"))
            relayed.health(source, Sight.BLIND)
        relayed.relay.check(relayed.clock.monotonic())
        relayed.relay.check(relayed.clock.monotonic() + 10.0)
    said = [record.getMessage() for record in caplog.records if "through" in record.getMessage()]
    assert said == [
        "aws, through the service agent: blind (timeout): no answer; look",
        "aws a, aws b, through the service agent: blind (timeout), as aws is",
    ]


def test_the_window_that_the_cloud_promises_comes_through_as_often_as_it_changes(
    serve: Serving, events: Events, relayed: Relayed
) -> None:
    """An older service agent says none."""
    server = serve()
    watcher = events.next(Watching).session
    for window in (0.0, 120.0, 120.0, 60.0):
        server.send(watcher, protocol.Watched(1, window))
    assert relayed.events.next(WindowTold).seconds == 120.0
    assert relayed.events.next(WindowTold).seconds == 60.0


def test_notices_and_health_come_through(serve: Serving, events: Events, relayed: Relayed) -> None:
    """As if they were seen here; nothing is polled here."""
    server = serve()
    watcher = events.next(Watching).session
    server.send(watcher, WATCHED)
    server.send(watcher, protocol.HealthSeen("aws", "blind", "hop-limit", "no answer", "raise it"))
    relayed.health(NAME, Sight.SEEING)
    health = relayed.health("aws", Sight.BLIND).health
    assert (health.reason, health.detail, health.advice) == ("hop-limit", "no answer", "raise it")
    before = relayed.clock.monotonic()
    server.send(watcher, protocol.NoticeSeen("n1", "terminate", "aws", 100.0, 120.0, "words"))
    notice = relayed.events.next(NoticeSeen).notice
    assert (notice.id, notice.kind, notice.window, notice.detail) == (
        "n1",
        NoticeKind.TERMINATE,
        120.0,
        "words",
    )
    assert before + 100 <= notice.deadline <= relayed.clock.monotonic() + 100
    server.send(watcher, protocol.NoticeGone("n1"))
    assert relayed.events.next(NoticeGone).id == "n1"


def test_what_a_newer_service_says_is_understood_as_far_as_it_can_be(
    serve: Serving, events: Events, relayed: Relayed
) -> None:
    """An unknown kind ends the machine, an unknown sight does not see, no window is longer than its kind's."""
    server = serve()
    watcher = events.next(Watching).session
    server.send(watcher, WATCHED)
    server.send(watcher, protocol.HealthSeen("aws", "squinting", "fog", "it is foggy"))
    assert relayed.health("aws", Sight.BLIND).health.detail == "it is foggy"
    server.send(watcher, protocol.NoticeSeen("n1", "evaporate", "aws", 1e6, 30.0))
    notice = relayed.events.next(NoticeSeen).notice
    assert notice.kind is NoticeKind.UNKNOWN
    assert notice.deadline <= relayed.clock.monotonic() + 30


def test_how_severe_a_notice_is_comes_through(serve: Serving, events: Events, relayed: Relayed) -> None:
    """With a deadline as far off as it is; an older service knows terminal ones only; a word that nobody knows ends
    the machine."""
    server = serve()
    watching = events.next(Watching)
    assert watching.severity
    server.send(watching.session, WATCHED)
    before = relayed.clock.monotonic()
    said = (("far", 9e5, "later"), ("warning", 0.0, "advisory"), ("odd", 9e5, "grave"))
    for id, left, severity in said:
        server.send(
            watching.session, protocol.NoticeSeen(id, "reboot", "aws", left, 60.0, "words", severity=severity)
        )
    far, warning, odd = (relayed.events.next(NoticeSeen).notice for _ in said)
    assert far.severity is Severity.LATER
    assert before + 9e5 <= far.deadline <= relayed.clock.monotonic() + 9e5
    assert warning.severity is Severity.ADVISORY
    assert odd.severity is Severity.TERMINAL
    assert odd.deadline <= relayed.clock.monotonic() + 60
    assert protocol.NoticeSeen("n", "stop", "aws", 1.0, 1.0).severity == Severity.TERMINAL


def test_a_service_that_dies_leaves_us_looking_ourselves(
    serve: Serving, events: Events, relayed: Relayed
) -> None:
    """Unguarded is said, our own watchers start; when it is back, they stop."""
    server = serve()
    watcher = events.next(Watching).session
    server.send(watcher, WATCHED)
    server.send(watcher, SEEING)
    relayed.health("aws", Sight.SEEING)
    server.close()
    lost = relayed.health(NAME, Sight.BLIND).health
    assert lost.reason == "unguarded"
    assert relayed.health("aws", Sight.BLIND).health.reason == "unguarded"
    relayed.health("fake source", Sight.SEEING)
    again = serve()
    again.send(events.next(Watching).session, WATCHED)
    relayed.health(NAME, Sight.SEEING)
    while relayed.own[-1].closed_by is None:
        relayed.clock.wait(NEVER, 0.001)
    assert relayed.own[-1].closed_by == "spotguard-watch-fake source"


REBOOT = protocol.NoticeSeen("n1", "reboot", "fake source", 9000.0, 120.0, "", "later")


def test_what_is_called_off_while_the_service_is_dead_is_withdrawn(
    serve: Serving, events: Events, folder: Path
) -> None:
    """It told of a reboot in hours, and nobody shows that any more: neither we nor, when it is back, itself. What is
    still shown stands."""
    for still in (False, True):
        server = serve()
        relayed = Relayed(folder / "a.sock", withdraws=True, beat=0.01)
        server.send(watcher := events.next(Watching).session, WATCHED)
        server.send(watcher, REBOOT)
        told = relayed.events.next(NoticeSeen).notice
        relayed.stands = (told,) if still else ()
        server.close()
        if still:
            assert relayed.events.next(NoticeSeen).notice.id == "n1"
            relayed.health(NAME, Sight.BLIND)
            again = serve()
            again.send(watcher := events.next(Watching).session, WATCHED)
            relayed.health(NAME, Sight.SEEING)
            assert not [e for e in relayed.events.drain() if isinstance(e, NoticeGone)]
            seeing = protocol.HealthSeen("fake source", "seeing")
            while not [e for e in relayed.events.drain() if isinstance(e, NoticeGone)]:
                again.send(watcher, seeing)
                relayed.clock.wait(NEVER, 0.001)
            again.close()
        assert relayed.events.next(NoticeGone).id == "n1"
        relayed.relay.stop(timeout=30)


def test_what_ends_the_machine_now_is_left_to_its_deadline(
    serve: Serving, events: Events, folder: Path
) -> None:
    """Nobody calls that off whom it is not shown to."""
    server = serve()
    relayed = Relayed(folder / "a.sock", withdraws=True, beat=0.0)
    server.send(watcher := events.next(Watching).session, WATCHED)
    server.send(watcher, replace(REBOOT, severity="terminal"))
    relayed.events.next(NoticeSeen)
    server.close()
    relayed.health("fake source", Sight.SEEING)
    looks = relayed.own[0].looks
    while relayed.own[0].looks < looks + 50:
        relayed.clock.wait(NEVER, 0.001)
    relayed.relay.stop(timeout=30)
    assert not [e for e in relayed.events.drain() if isinstance(e, NoticeGone)]


def test_when_the_service_is_back_what_we_saw_ourselves_is_no_sight(
    serve: Serving, events: Events, relayed: Relayed
) -> None:
    """It says itself what it sees, of the sources that it has; those of nobody are not shown any more."""
    relayed.health(NAME, Sight.BLIND)
    relayed.health("fake source", Sight.SEEING)
    server = serve()
    server.send(watcher := events.next(Watching).session, WATCHED)
    assert relayed.events.next(SourceGone) == SourceGone("fake source")
    server.send(watcher, SEEING)
    relayed.health("aws", Sight.SEEING)
    server.close()
    assert relayed.health("aws", Sight.BLIND).health.reason == "unguarded"
    again = serve()
    again.send(events.next(Watching).session, protocol.Watched(2))
    assert {relayed.events.next(SourceGone).source for _ in range(2)} == {"aws", "fake source"}


def test_what_was_said_to_us_is_not_what_was_said_to_the_service(
    serve: Serving, events: Events, folder: Path
) -> None:
    """Each has a `--deadline` of its own, under one name."""
    server = serve()
    relayed = Relayed(folder / "a.sock", ours=["--deadline"])
    server.send(watcher := events.next(Watching).session, WATCHED)
    server.send(watcher, protocol.HealthSeen("--deadline", "seeing"))
    server.send(watcher, SEEING)
    relayed.health("aws", Sight.SEEING)
    relayed.relay.stop(timeout=30)
    said = [e.source for e in relayed.events.drain() if isinstance(e, HealthChanged)]
    assert "--deadline" not in said


def test_nobody_answers_from_the_start(relayed: Relayed) -> None:
    """The watchers of our own start at once."""
    relayed.health(NAME, Sight.BLIND)
    relayed.health("fake source", Sight.SEEING)


def test_a_service_that_is_stopped_is_not_waited_for(serve: Serving, events: Events, folder: Path) -> None:
    """The kernel accepts for it. We look ourselves, and go on asking."""
    serve()
    relayed = Relayed(folder / "a.sock", answers_in=0.1)
    assert relayed.health(NAME, Sight.BLIND).health.reason == "unguarded"
    relayed.health("fake source", Sight.SEEING)
    assert events.next(Watching) != events.next(Watching)
    relayed.relay.stop(timeout=30)


def test_a_service_that_goes_silent_is_as_dead(serve: Serving, events: Events, folder: Path) -> None:
    """It was well, and then it says nothing any more: its last word is no sight."""
    server = serve()
    relayed = Relayed(folder / "a.sock", silence=0.1)
    watcher = events.next(Watching).session
    server.send(watcher, WATCHED)
    server.send(watcher, SEEING)
    relayed.health("aws", Sight.SEEING)
    assert relayed.health(NAME, Sight.BLIND).health.detail.endswith("it says nothing")
    relayed.health("aws", Sight.BLIND)
    relayed.health("fake source", Sight.SEEING)
    relayed.relay.stop(timeout=30)


def test_a_service_that_watches_nothing_leaves_us_looking_ourselves(
    serve: Serving, events: Events, relayed: Relayed
) -> None:
    """Its silence about notices would mean nothing; what it says all the same is heard."""
    server = serve()
    watcher = events.next(Watching).session
    server.send(watcher, protocol.Watched(0))
    assert "watches nothing" in relayed.health(NAME, Sight.SEEING).health.detail
    relayed.health("fake source", Sight.SEEING)
    server.send(watcher, protocol.NoticeSeen("n1", "terminate", "aws", 100.0, 120.0, "words"))
    assert relayed.events.next(NoticeSeen).notice.id == "n1"


def test_nothing_to_watch_on_either_side_is_said(serve: Serving, events: Events, folder: Path) -> None:
    """As on a laptop with a service: no source is invented, and no warning given."""
    server = serve()
    relayed = Relayed(folder / "a.sock", any_source=False)
    server.send(events.next(Watching).session, protocol.Watched(0))
    assert "here is nothing to watch" in relayed.health(NAME, Sight.SEEING).health.detail
    relayed.relay.stop(timeout=30)
    assert not relayed.own


def test_what_the_service_repeats_is_no_news(serve: Serving, events: Events, folder: Path) -> None:
    """Signs of life come every few seconds; what they say is passed on once."""
    server = serve()
    relayed = Relayed(folder / "a.sock")
    watcher = events.next(Watching).session
    for _ in range(3):
        server.send(watcher, WATCHED)
        server.send(watcher, SEEING)
    server.send(watcher, protocol.HealthSeen("aws", "blind", "timeout"))
    relayed.health("aws", Sight.BLIND)
    said = [e.health.sight for e in relayed.events.drain() if isinstance(e, HealthChanged)]
    assert said == [Sight.SEEING, Sight.SEEING]  # of the service itself, and of its source
    relayed.relay.stop(timeout=30)


def test_a_service_that_does_not_say_what_it_watches_is_not_used(
    serve: Serving, events: Events, folder: Path
) -> None:
    """It is none of this version."""
    server = serve()
    relayed = Relayed(folder / "a.sock")
    server.send(events.next(Watching).session, SEEING)
    assert "does not say" in relayed.health(NAME, Sight.BLIND).health.detail
    relayed.health("fake source", Sight.SEEING)
    relayed.relay.stop(timeout=30)


def test_a_service_of_another_version_is_not_used(folder: Path, relayed: Relayed) -> None:
    """It refuses, and we look ourselves."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(folder / "a.sock"))
        listener.listen()
        connection, _ = listener.accept()
        with connection:
            connection.sendall(protocol.encode(protocol.Refused("you speak 1")))
            relayed.health("fake source", Sight.SEEING)


def test_garbage_from_the_service_is_as_its_death(folder: Path, relayed: Relayed) -> None:
    """It is believed in nothing, and asked again."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(folder / "a.sock"))
        listener.listen()
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"\xff\xff\xff\xff")
            relayed.health("fake source", Sight.SEEING)
        again, _ = listener.accept()
        again.close()


def test_stopping_does_not_wait_for_the_service(serve: Serving, events: Events, folder: Path) -> None:
    """And says nothing about an agent that it has left itself."""
    serve()
    relayed = Relayed(folder / "a.sock")
    events.next(Watching)
    relayed.relay.stop(timeout=30)
    assert not [e for e in relayed.events.drain() if isinstance(e, HealthChanged) and not e.health.seeing]
