"""A run lets the service agent poll: real server on a real socket, as it comes, goes, dies and lies."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotguard.agent.events import HealthChanged, NoticeGone, NoticeSeen, Watching
from spotguard.agent.relay import NAME, Relay
from spotguard.agent.watcher import Watcher
from spotguard.hooks import protocol
from spotguard.providers.clock import SystemClock
from spotguard.providers.health import Sight
from spotguard.providers.notice import NoticeKind
from tests.fakes.serving import Events, Serving
from tests.fakes.source import FakeSource

SEEING = protocol.HealthSeen("aws", "seeing")
NEVER = threading.Event()


class Relayed:
    """A relay, what it posts, and the sources that it looks through when it has to look itself."""

    def __init__(self, path: Path) -> None:
        self.events = Events()
        self.clock = SystemClock()
        self.own: list[FakeSource] = []
        self.relay = Relay(path, self.events.queue.put, self.clock, random.Random(1), self._watchers)
        self.relay.start()

    def _watchers(self) -> list[Watcher]:
        self.own.append(FakeSource())
        return [Watcher(self.own[-1], self.events.queue.put, self.clock, random.Random(1))]

    def health(self, source: str, sight: Sight) -> HealthChanged:
        return self.events.next(HealthChanged, lambda e: e.source == source and e.health.sight is sight)


@pytest.fixture
def relayed(folder: Path) -> Iterator[Relayed]:
    relayed = Relayed(folder / "a.sock")
    yield relayed
    relayed.relay.stop(timeout=30)


def test_notices_and_health_come_through(serve: Serving, events: Events, relayed: Relayed) -> None:
    """As if they were seen here; nothing is polled here."""
    server = serve()
    watcher = events.next(Watching).session
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
    server.send(watcher, protocol.HealthSeen("aws", "squinting", "fog", "it is foggy"))
    assert relayed.health("aws", Sight.BLIND).health.detail == "it is foggy"
    server.send(watcher, protocol.NoticeSeen("n1", "evaporate", "aws", 1e6, 30.0))
    notice = relayed.events.next(NoticeSeen).notice
    assert notice.kind is NoticeKind.UNKNOWN
    assert notice.deadline <= relayed.clock.monotonic() + 30


def test_a_service_that_dies_leaves_us_looking_ourselves(
    serve: Serving, events: Events, relayed: Relayed
) -> None:
    """Unguarded is said, our own watchers start; when it is back, they stop."""
    server = serve()
    server.send(events.next(Watching).session, SEEING)
    relayed.health(NAME, Sight.SEEING)
    server.close()
    lost = relayed.health(NAME, Sight.BLIND).health
    assert lost.reason == "unguarded"
    relayed.health("fake source", Sight.SEEING)
    again = serve()
    again.send(events.next(Watching).session, SEEING)
    relayed.health(NAME, Sight.SEEING)
    while relayed.own[-1].closed_by is None:
        relayed.clock.wait(NEVER, 0.001)
    assert relayed.own[-1].closed_by == "spotguard-watch-fake source"


def test_nobody_answers_from_the_start(relayed: Relayed) -> None:
    """The watchers of our own start at once."""
    relayed.health(NAME, Sight.BLIND)
    relayed.health("fake source", Sight.SEEING)


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
