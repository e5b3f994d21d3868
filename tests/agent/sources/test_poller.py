"""A watcher never exits and is never silent: cadence, back-off, and what it posts and logs."""

from __future__ import annotations

import logging
import random
from dataclasses import replace

import pytest

from spotguard.agent.events import Event, HealthChanged, NoticeGone, NoticeSeen, WindowTold
from spotguard.agent.sources.poller import LONGEST_WAIT, Poller
from spotguard.providers.health import SEEING, Health, Sight, blind, wrong_server
from spotguard.providers.notice import Severity, Sighting
from tests.fakes.clock import ManualClock
from tests.fakes.source import FakeSource, a_notice
from tests.fakes.talk import TIMEOUT

UNREACHABLE = Sighting(blind("unreachable", "connection refused", "is it on?"))


class Watched:
    def __init__(self, source: FakeSource) -> None:
        self.source = source
        self.clock = ManualClock()
        self.events: list[Event] = []
        self.poller = Poller(source, self.events.append, self.clock, random.Random(1))

    def look(self) -> list[Event]:
        """One look; what it posted."""
        mark = len(self.events)
        self.poller.look()
        return self.events[mark:]


def test_a_notice_is_posted_once() -> None:
    """And again only when it changes."""
    watched = Watched(FakeSource())
    watched.source.shows(a_notice())
    assert NoticeSeen(a_notice()) in watched.look()
    watched.source.shows(a_notice(deadline=1120.3))  # two readings of one time
    assert watched.look() == []
    earlier = a_notice(deadline=1060)
    watched.source.shows(earlier)
    assert watched.look() == [NoticeSeen(earlier)]


class Promised(FakeSource):
    """As GCE's plain GET: it has asked how long the notice is, or not yet."""

    told: float | None = None


def test_the_announced_window_is_posted_once_and_again_when_it_changes() -> None:
    source = Promised()
    watched = Watched(source)

    def told() -> list[float]:
        return [event.seconds for event in watched.look() if isinstance(event, WindowTold)]

    assert told() == []
    source.told = 120.0
    assert [told(), told()] == [[120.0], []]
    source.told = 30.0
    assert told() == [30.0]


def test_a_notice_that_becomes_more_severe_is_news() -> None:
    """Azure: the same id, `Scheduled` and then `Started`."""
    watched = Watched(FakeSource(withdraws=True))
    later = replace(a_notice(), severity=Severity.LATER)
    watched.source.shows(later)
    assert NoticeSeen(later) in watched.look()
    watched.source.shows(a_notice())
    assert watched.look() == [NoticeSeen(a_notice())]


def test_a_far_event_that_is_put_off_is_withdrawn_and_new() -> None:
    """So that the machine, for which a deadline only moves earlier, lets go of the first one."""
    for withdraws, left, news in ((True, 3600.0, 2), (False, 3600.0, 1), (True, 200.0, 1)):
        watched = Watched(FakeSource(withdraws=withdraws))
        now = watched.clock.monotonic()
        first = replace(a_notice(deadline=now + left, seen_at=now), severity=Severity.LATER)
        put_off = replace(first, deadline=now + 86400)
        watched.source.shows(first)
        watched.look()
        watched.source.shows(put_off)
        assert watched.look() == [NoticeGone("n1"), NoticeSeen(put_off)][-news:]
        watched.source.shows(replace(put_off, deadline=put_off.deadline + 30))  # a clock that is put right
        assert NoticeGone("n1") not in watched.look()


def test_two_notices_are_two() -> None:
    """Each by its id."""
    watched = Watched(FakeSource())
    watched.source.shows(a_notice("a"), a_notice("b"))
    assert [e.notice.id for e in watched.look() if isinstance(e, NoticeSeen)] == ["a", "b"]


def test_a_vanished_notice_is_withdrawn_only_if_the_source_withdraws() -> None:
    """AWS's notice that disappears has not been documented to be void."""
    for withdraws in (True, False):
        watched = Watched(FakeSource(withdraws=withdraws))
        watched.source.shows(a_notice())
        watched.look()
        watched.source.shows()
        assert watched.look() == ([NoticeGone("n1")] if withdraws else [])


def test_a_notice_that_a_blind_source_does_not_show_is_not_withdrawn() -> None:
    """Not seeing is no news about the notice."""
    watched = Watched(FakeSource(withdraws=True))
    watched.source.shows(a_notice())
    watched.look()
    watched.source.sighting = UNREACHABLE
    assert not [e for e in watched.look() if isinstance(e, NoticeGone)]


def test_health_is_posted_when_it_changes_and_not_before() -> None:
    """With since when it is so; other words for the same are shown, and change nothing about when it began."""
    watched = Watched(FakeSource())
    (seeing,) = watched.look()
    assert isinstance(seeing, HealthChanged)
    assert seeing.health.seeing
    assert watched.look() == []
    watched.clock.advance(5)
    watched.source.sighting = UNREACHABLE
    (lost,) = watched.look()
    assert lost == HealthChanged("fake source", UNREACHABLE.health, 1005.0)
    assert watched.look() == []
    watched.clock.advance(5)
    watched.source.sighting = Sighting(blind("unreachable", "other words"))
    (again,) = watched.look()
    assert again == HealthChanged("fake source", watched.source.sighting.health, 1005.0)
    watched.source.sighting = Sighting(wrong_server("a portal"))
    (other,) = watched.look()
    assert isinstance(other, HealthChanged)
    assert other.health.sight is Sight.WRONG_SERVER


def test_a_source_that_raises_is_blind_and_looked_through_again() -> None:
    """A mistake of ours is no end."""
    watched = Watched(FakeSource())
    watched.source.sighting = RuntimeError("a bug")
    (event,) = watched.look()
    assert isinstance(event, HealthChanged)
    assert event.health.reason == "garbage"
    assert "RuntimeError: a bug" in event.health.detail
    watched.source.shows(a_notice())
    assert NoticeSeen(a_notice()) in watched.look()


@pytest.mark.parametrize("interval", [0.5, 1.0, 10.0])
def test_blind_it_backs_off_to_two_seconds_at_most(interval: float) -> None:
    """A source seen every 10 s is tried every 2 s while it is blind; jitter only shortens."""
    watched = Watched(FakeSource(interval=interval))
    watched.look()
    assert watched.poller.delay() == interval
    watched.source.sighting = UNREACHABLE
    delays = []
    for _ in range(2000):  # no overflow, however long it is blind
        watched.look()
        delays.append(watched.poller.delay())
    assert max(delays) <= LONGEST_WAIT
    assert min(delays) >= 0.9 * min(interval, LONGEST_WAIT)
    assert min(delays[10:]) >= 0.9 * LONGEST_WAIT
    watched.source.shows()
    watched.look()
    assert watched.poller.delay() == interval


def test_the_state_of_a_source_is_logged_under_its_name(caplog: pytest.LogCaptureFixture) -> None:
    """At once and every minute, not at every look; with the reason and what to do."""
    watched = Watched(FakeSource())
    with caplog.at_level(logging.INFO, "spotguard"):
        watched.look()
        watched.source.sighting = UNREACHABLE
        for _ in range(130):
            watched.look()
            watched.clock.advance(1)
    said = [(record.levelno, record.getMessage()) for record in caplog.records]
    why = "blind (unreachable): connection refused; is it on?"
    assert said == [
        (logging.INFO, "fake source: seeing"),
        (logging.WARNING, f"fake source: {why}"),
        (logging.WARNING, f"fake source: still {why} after 60 s"),
        (logging.WARNING, f"fake source: still {why} after 120 s"),
    ]


class Patient(FakeSource):
    """One whose cloud waits for a word."""

    def __init__(self) -> None:
        super().__init__()
        self.acknowledged: list[str] = []

    def acknowledge(self, notice_id: str) -> None:
        self.acknowledged.append(notice_id)


def test_an_approval_goes_to_a_source_that_can_acknowledge() -> None:
    """And to no other."""
    source = Patient()
    Watched(source).poller.acknowledge("n1")
    assert source.acknowledged == ["n1"]
    Watched(FakeSource()).poller.acknowledge("n1")


def test_the_thread_looks_at_its_cadence_and_closes_the_source_itself() -> None:
    """From start to stop, on a clock that only the test moves."""
    watched = Watched(FakeSource())
    watched.poller.start()
    for looks in (1, 2, 3):
        assert watched.clock.wait_for_waiters()
        assert watched.source.looks == looks
        watched.clock.advance(1.0)
        assert looks == 3 or wait_for_look(watched, looks + 1)
    watched.poller.stop(timeout=100)
    assert watched.source.closed_by == "spotguard-watch-fake source"
    assert isinstance(watched.events[0], HealthChanged)
    assert watched.events[0].health.reason == "starting"


def wait_for_look(watched: Watched, looks: int) -> bool:
    """The thread has looked so often, and waits again."""
    import threading

    never = threading.Event()
    for _ in range(5000):
        if watched.source.looks >= looks:
            return watched.clock.wait_for_waiters()
        never.wait(0.001)
    return False


# --- for the metrics ---


def test_a_notice_tells_for_how_long_nobody_had_looked() -> None:
    """From the end of the last look that saw to the beginning of this one: it had stood no longer than that."""
    watched = Watched(FakeSource())
    watched.source.shows(a_notice("first"))
    assert [e.unseen for e in watched.look() if isinstance(e, NoticeSeen)] == [
        None
    ]  # it may have stood for ever
    watched.look()
    watched.clock.advance(1)
    watched.source.sighting = UNREACHABLE
    watched.look()
    watched.clock.advance(2)
    watched.source.shows(a_notice("second"))
    assert [e.unseen for e in watched.look() if isinstance(e, NoticeSeen)] == [3.0]


def test_each_poll_that_ends_is_counted_with_its_health() -> None:
    polls, source, events = list[tuple[str, Health]](), FakeSource(), list[Event]()
    full = Health(Sight.BLIND, "server-error", "GET /: 503", code=503)
    poller = Poller(
        source, events.append, ManualClock(), random.Random(1), None, lambda *poll: polls.append(poll)
    )
    source.shows()
    poller.look()
    for sighting in (UNREACHABLE, UNREACHABLE, Sighting(full)):
        source.sighting = sighting
        poller.look()
    assert polls == [
        ("fake source", health) for health in (SEEING, UNREACHABLE.health, UNREACHABLE.health, full)
    ]


def test_a_poll_that_ends_after_the_stop_is_not_counted() -> None:
    """Its successor counts by then."""
    polls, source, events = list[str](), FakeSource(), list[Event]()
    poller = Poller(
        source, events.append, ManualClock(), random.Random(1), None, lambda name, _: polls.append(name)
    )
    poller.start()
    poller.stop(TIMEOUT)
    counted = list(polls)
    poller.look()
    assert polls == counted
