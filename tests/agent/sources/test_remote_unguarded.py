"""A run whose service agent dies, is silent, watches nothing or lies looks itself: real server on a real socket."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

from spotguard.agent.events import NoticeGone, NoticeSeen, Watching
from spotguard.agent.sources.remote import NAME
from spotguard.hooks.ipc import protocol
from spotguard.providers.health import Sight
from tests.agent.sources.relayed import NEVER, SEEING, WATCHED, Relayed
from tests.fakes.serving import Events, Serving

REBOOT = protocol.FeedNotice("n1", "reboot", "fake source", 9000.0, 120.0, "", "later")


def test_a_service_that_dies_leaves_us_looking_ourselves(
    serve: Serving, events: Events, relayed: Relayed
) -> None:
    """Unguarded is said, our own watchers start; when it is back, they stop."""
    server = serve()
    poller = events.next(Watching).session
    server.send(poller, WATCHED)
    server.send(poller, SEEING)
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


REBOOT = protocol.FeedNotice("n1", "reboot", "fake source", 9000.0, 120.0, "", "later")


def test_a_notice_cancelled_while_the_service_is_dead_is_withdrawn(
    serve: Serving, events: Events, folder: Path
) -> None:
    """It told of a reboot in hours, and nobody shows that any more: neither we nor, when it is back, itself. What is
    still shown stands."""
    for still in (False, True):
        server = serve()
        relayed = Relayed(folder / "a.sock", withdraws=True, beat=0.01)
        server.send(poller := events.next(Watching).session, WATCHED)
        server.send(poller, REBOOT)
        told = relayed.events.next(NoticeSeen).notice
        relayed.stands = (told,) if still else ()
        server.close()
        if still:
            assert relayed.events.next(NoticeSeen).notice.id == "n1"
            relayed.health(NAME, Sight.BLIND)
            again = serve()
            again.send(poller := events.next(Watching).session, WATCHED)
            relayed.health(NAME, Sight.SEEING)
            assert not [e for e in relayed.events.drain() if isinstance(e, NoticeGone)]
            seeing = protocol.FeedHealth("fake source", "seeing", "", "", "", 0.0)
            while not [e for e in relayed.events.drain() if isinstance(e, NoticeGone)]:
                again.send(poller, seeing)
                relayed.clock.wait(NEVER, 0.001)
            again.close()
        assert relayed.events.next(NoticeGone).id == "n1"
        relayed.relay.stop(timeout=100)


def test_a_notice_that_ends_the_machine_now_is_left_to_its_deadline(
    serve: Serving, events: Events, folder: Path
) -> None:
    """Nobody calls that off whom it is not shown to."""
    server = serve()
    relayed = Relayed(folder / "a.sock", withdraws=True, beat=0.0)
    server.send(poller := events.next(Watching).session, WATCHED)
    server.send(poller, replace(REBOOT, severity="terminal"))
    relayed.events.next(NoticeSeen)
    server.close()
    relayed.health("fake source", Sight.SEEING)
    looks = relayed.own[0].looks
    while relayed.own[0].looks < looks + 50:
        relayed.clock.wait(NEVER, 0.001)
    relayed.relay.stop(timeout=100)
    assert not [e for e in relayed.events.drain() if isinstance(e, NoticeGone)]


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
    relayed.relay.stop(timeout=100)


def test_a_service_that_goes_silent_is_as_dead(serve: Serving, events: Events, folder: Path) -> None:
    """It was well, and then it says nothing any more: its last word is no sight."""
    server = serve()
    relayed = Relayed(folder / "a.sock", silence=0.1)
    poller = events.next(Watching).session
    server.send(poller, WATCHED)
    server.send(poller, SEEING)
    relayed.health("aws", Sight.SEEING)
    assert relayed.health(NAME, Sight.BLIND).health.detail.endswith("it sends nothing")
    relayed.health("aws", Sight.BLIND)
    relayed.health("fake source", Sight.SEEING)
    relayed.relay.stop(timeout=100)


def test_a_service_that_watches_nothing_leaves_us_looking_ourselves(
    serve: Serving, events: Events, relayed: Relayed
) -> None:
    """Its silence about notices would mean nothing; what it says all the same is heard."""
    server = serve()
    poller = events.next(Watching).session
    server.send(poller, protocol.Watched(0))
    assert "watches nothing" in relayed.health(NAME, Sight.SEEING).health.detail
    relayed.health("fake source", Sight.SEEING)
    server.send(poller, protocol.FeedNotice("n1", "terminate", "aws", 100.0, 120.0, "words", "terminal"))
    assert relayed.events.next(NoticeSeen).notice.id == "n1"


def test_nothing_to_watch_on_either_side_is_said(serve: Serving, events: Events, folder: Path) -> None:
    """As on a laptop with a service: no source is invented, and no warning given."""
    server = serve()
    relayed = Relayed(folder / "a.sock", any_source=False)
    server.send(events.next(Watching).session, protocol.Watched(0))
    assert "here is nothing to watch" in relayed.health(NAME, Sight.SEEING).health.detail
    relayed.relay.stop(timeout=100)
    assert not relayed.own


def test_a_service_that_does_not_say_what_it_watches_is_not_used(
    serve: Serving, events: Events, folder: Path
) -> None:
    """It breaks the protocol."""
    server = serve()
    relayed = Relayed(folder / "a.sock")
    server.send(events.next(Watching).session, SEEING)
    assert "does not report" in relayed.health(NAME, Sight.BLIND).health.detail
    relayed.health("fake source", Sight.SEEING)
    relayed.relay.stop(timeout=100)


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
