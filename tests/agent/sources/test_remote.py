"""A run lets the service agent poll: what it says comes through, from a real server on a real socket."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from spotguard.agent.events import HealthChanged, NoticeGone, NoticeSeen, SourceGone, Watching, WindowTold
from spotguard.agent.sources.remote import NAME
from spotguard.hooks.ipc import protocol
from spotguard.providers.health import Sight
from spotguard.providers.notice import NoticeKind, Severity
from tests.agent.sources.relayed import SEEING, WATCHED, Relayed
from tests.fakes.serving import Events, Serving


def test_the_services_health_is_logged_in_the_run_too(
    serve: Serving, events: Events, relayed: Relayed, caplog: pytest.LogCaptureFixture
) -> None:
    """Since when, what a seeing source has to add, and all of it in this run's own log: the service's is not read by
    whoever runs here. Said again with each sign of life, it is logged once."""
    server = serve()
    poller = events.next(Watching).session
    with caplog.at_level(logging.INFO, "spotguard"):
        server.send(poller, WATCHED)
        blind = protocol.FeedHealth("aws", "blind", "hop-limit", "no answer", "raise it", 3600.0)
        for _ in range(3):
            server.send(poller, blind)
        lost = relayed.health("aws", Sight.BLIND)
        server.send(poller, protocol.FeedHealth("aws", "seeing", "", "stale, no notice", "", 0.0))
        assert relayed.health("aws", Sight.SEEING).health.detail == "stale, no notice"
    assert 3600.0 <= relayed.clock.monotonic() - lost.since < 3630.0
    said = [record.getMessage() for record in caplog.records]
    assert [line for line in said if line.startswith("aws, through")] == [
        "aws, through the service agent: blind (hop-limit): no answer; raise it",
        "aws, through the service agent: seeing; stale, no notice (again, after 0 s)",
    ]


def test_a_cause_common_to_all_relayed_sources_is_logged_together(
    serve: Serving, events: Events, relayed: Relayed, caplog: pytest.LogCaptureFixture
) -> None:
    """The first at once, the others in one line, when the main loop comes by."""
    server = serve()
    poller = events.next(Watching).session
    with caplog.at_level(logging.INFO, "spotguard"):
        server.send(poller, WATCHED)
        for source in ("aws", "aws a", "aws b"):
            server.send(poller, protocol.FeedHealth(source, "blind", "timeout", "no answer", "look", 0.0))
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
    """0: none was announced yet."""
    server = serve()
    poller = events.next(Watching).session
    for window in (0.0, 120.0, 120.0, 60.0):
        server.send(poller, protocol.Watched(1, window))
    assert relayed.events.next(WindowTold).seconds == 120.0
    assert relayed.events.next(WindowTold).seconds == 60.0


def test_notices_and_health_come_through(serve: Serving, events: Events, relayed: Relayed) -> None:
    """As if they were seen here; nothing is polled here."""
    server = serve()
    poller = events.next(Watching).session
    server.send(poller, WATCHED)
    server.send(poller, protocol.FeedHealth("aws", "blind", "hop-limit", "no answer", "raise it", 0.0))
    relayed.health(NAME, Sight.SEEING)
    health = relayed.health("aws", Sight.BLIND).health
    assert (health.reason, health.detail, health.advice) == ("hop-limit", "no answer", "raise it")
    before = relayed.clock.monotonic()
    server.send(poller, protocol.FeedNotice("n1", "terminate", "aws", 100.0, 120.0, "words", "terminal"))
    notice = relayed.events.next(NoticeSeen).notice
    assert (notice.id, notice.kind, notice.window, notice.detail) == (
        "n1",
        NoticeKind.TERMINATE,
        120.0,
        "words",
    )
    assert before + 100 <= notice.deadline <= relayed.clock.monotonic() + 100
    server.send(poller, protocol.FeedNoticeGone("n1"))
    assert relayed.events.next(NoticeGone).id == "n1"


@pytest.mark.parametrize(
    "said",
    [
        protocol.FeedHealth("aws", "squinting", "fog", "it is foggy", "", 0.0),
        protocol.FeedHealth("aws", "blind", "fog", "it is foggy", "", 0.0),
        protocol.FeedNotice("n1", "evaporate", "aws", 10.0, 30.0, "", "terminal"),
        protocol.FeedNotice("n1", "terminate", "aws", 10.0, 30.0, "", "grave"),
    ],
)
def test_an_unknown_value_from_the_service_ends_the_connection(
    said: protocol.FeedHealth | protocol.FeedNotice, serve: Serving, events: Events, folder: Path
) -> None:
    """This run looks for notices itself from then on."""
    server = serve()
    relayed = Relayed(folder / "a.sock")
    poller = events.next(Watching).session
    server.send(poller, WATCHED)
    relayed.health(NAME, Sight.SEEING)
    server.send(poller, said)
    assert "it sends an unknown" in relayed.health(NAME, Sight.BLIND).health.detail
    relayed.health("fake source", Sight.SEEING)
    relayed.relay.stop(timeout=30)


def test_how_severe_a_notice_is_comes_through(serve: Serving, events: Events, relayed: Relayed) -> None:
    """With a deadline as far off as it is; that of a terminal one is no farther than its window."""
    server = serve()
    watching = events.next(Watching)
    server.send(watching.session, WATCHED)
    before = relayed.clock.monotonic()
    said = (("far", 9e5, "later"), ("warning", 0.0, "advisory"), ("end", 9e5, "terminal"))
    for id, left, severity in said:
        server.send(watching.session, protocol.FeedNotice(id, "reboot", "aws", left, 60.0, "words", severity))
    far, warning, end = (relayed.events.next(NoticeSeen).notice for _ in said)
    assert far.severity is Severity.LATER
    assert before + 9e5 <= far.deadline <= relayed.clock.monotonic() + 9e5
    assert warning.severity is Severity.ADVISORY
    assert end.severity is Severity.TERMINAL
    assert end.deadline <= relayed.clock.monotonic() + 60


def test_when_the_service_is_back_what_we_saw_ourselves_is_no_sight(
    serve: Serving, events: Events, relayed: Relayed
) -> None:
    """It says itself what it sees, of the sources that it has; those of nobody are not shown any more."""
    relayed.health(NAME, Sight.BLIND)
    relayed.health("fake source", Sight.SEEING)
    server = serve()
    server.send(poller := events.next(Watching).session, WATCHED)
    assert relayed.events.next(SourceGone) == SourceGone("fake source")
    server.send(poller, SEEING)
    relayed.health("aws", Sight.SEEING)
    server.close()
    assert relayed.health("aws", Sight.BLIND).health.reason == "unguarded"
    again = serve()
    again.send(events.next(Watching).session, protocol.Watched(2))
    assert {relayed.events.next(SourceGone).source for _ in range(2)} == {"aws", "fake source"}


def test_a_deadline_of_the_run_is_not_one_of_the_service(
    serve: Serving, events: Events, folder: Path
) -> None:
    """Each has a `--deadline` of its own, under one name."""
    server = serve()
    relayed = Relayed(folder / "a.sock", ours=["--deadline"])
    server.send(poller := events.next(Watching).session, WATCHED)
    server.send(poller, protocol.FeedHealth("--deadline", "seeing", "", "", "", 0.0))
    server.send(poller, SEEING)
    relayed.health("aws", Sight.SEEING)
    relayed.relay.stop(timeout=100)
    said = [e.source for e in relayed.events.drain() if isinstance(e, HealthChanged)]
    assert "--deadline" not in said


def test_repeated_messages_of_the_service_are_no_news(serve: Serving, events: Events, folder: Path) -> None:
    """Signs of life come every few seconds; what they say is passed on once."""
    server = serve()
    relayed = Relayed(folder / "a.sock")
    poller = events.next(Watching).session
    for _ in range(3):
        server.send(poller, WATCHED)
        server.send(poller, SEEING)
    server.send(poller, protocol.FeedHealth("aws", "blind", "timeout", "", "", 0.0))
    relayed.health("aws", Sight.BLIND)
    said = [e.health.sight for e in relayed.events.drain() if isinstance(e, HealthChanged)]
    assert said == [Sight.SEEING, Sight.SEEING]  # of the service itself, and of its source
    relayed.relay.stop(timeout=100)


def test_stopping_does_not_wait_for_the_service(serve: Serving, events: Events, folder: Path) -> None:
    """And says nothing about an agent that it has left itself."""
    serve()
    relayed = Relayed(folder / "a.sock")
    events.next(Watching)
    relayed.relay.stop(timeout=100)
    assert not [e for e in relayed.events.drain() if isinstance(e, HealthChanged) and not e.health.seeing]
