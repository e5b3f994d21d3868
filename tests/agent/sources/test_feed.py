"""What a watching agent is told: that we live, how well we see, and the notices that still mean something."""

from __future__ import annotations

from spotguard.agent.core.command import OUTLIVED
from spotguard.agent.events import Closed, HealthChanged, NoticeSeen, SourceGone, Watching, WindowTold
from spotguard.agent.sources.feed import BEAT, Feed
from spotguard.hooks.ipc import protocol
from spotguard.providers.health import SEEING
from spotguard.providers.notice import Notice, NoticeKind, Severity
from tests.fakes.source import a_notice

FOLLOWER = frozenset({7})
NOTICE = a_notice(deadline=1120.0, seen_at=1000.0)


def test_a_follower_is_told_first_how_many_sources_are_watched() -> None:
    """First of all, also where nothing has been seen yet."""
    assert list(Feed(2).take(Watching(7), 1000.0)) == [(FOLLOWER, protocol.Watched(2))]


def test_signs_of_life_come_while_somebody_watches() -> None:
    """Each with the health of every source; nobody is woken for nobody."""
    feed = Feed(1)
    assert feed.next_beat is None
    list(feed.take(HealthChanged("aws", SEEING, 1000.0), 1000.0))
    list(feed.take(Watching(7), 1000.0))
    assert feed.next_beat == 1000.0 + BEAT
    assert list(feed.take(None, 1000.0 + BEAT - 0.1)) == []
    said = [protocol.Watched(1), protocol.FeedHealth("aws", "seeing", "", "", "", BEAT)]
    assert list(feed.take(None, 1000.0 + BEAT)) == [(FOLLOWER, message) for message in said]
    assert feed.next_beat == 1000.0 + 2 * BEAT
    list(feed.take(Closed(7, ""), 1000.0))
    assert feed.next_beat is None
    assert list(feed.take(None, 1000.0 + 9 * BEAT)) == []


def test_the_announced_window_is_sent_at_once_and_with_each_heartbeat() -> None:
    """Its newest word; before it has said one, none."""
    feed = Feed(1)
    assert list(feed.take(WindowTold(60.0), 1000.0)) == []
    assert list(feed.take(Watching(7), 1000.0)) == [(FOLLOWER, protocol.Watched(1, 60.0))]
    assert list(feed.take(WindowTold(120.0), 1001.0)) == [(FOLLOWER, protocol.Watched(1, 120.0))]
    assert list(feed.take(None, 1000.0 + BEAT)) == [(FOLLOWER, protocol.Watched(1, 120.0))]


def test_a_notice_that_stands_is_told_until_the_machine_has_outlived_it() -> None:
    """With the seconds that are left; AWS shows it for ever, and who comes an hour later has nothing to fear."""
    feed = Feed(1)
    list(feed.take(NoticeSeen(NOTICE), 1000.0))

    def told(now: float) -> list[float]:
        heard = [message for _, message in feed.take(Watching(7), now)]
        return [message.seconds_left for message in heard if isinstance(message, protocol.FeedNotice)]

    assert told(1020.0) == [100.0]
    assert told(1120.0 + OUTLIVED - 1) == [0.0]
    assert told(1120.0 + OUTLIVED) == []


def test_a_notice_that_is_outlived_is_no_news() -> None:
    """Neither for those who watch already."""
    feed = Feed(1)
    list(feed.take(Watching(7), 1000.0))
    heard = list(feed.take(NoticeSeen(NOTICE), 1120.0 + OUTLIVED))
    assert heard == [(FOLLOWER, protocol.Watched(1))]  # a sign of life


def test_a_warning_is_told_for_as_long_as_it_is_shown() -> None:
    """It has no deadline that could be outlived."""
    feed = Feed(1)
    warning = Notice("w", NoticeKind.REBALANCE, "aws rebalance", 1000.0, 1000.0, Severity.ADVISORY)
    list(feed.take(NoticeSeen(warning), 1000.0))
    (_, (_, message)) = feed.take(Watching(7), 1000.0 + 10 * OUTLIVED)
    assert isinstance(message, protocol.FeedNotice)
    assert (message.severity, message.seconds_left) == ("advisory", 0.0)


def test_a_source_that_nobody_looks_through_is_not_shown() -> None:
    """What was said of it is nobody's sight."""
    feed = Feed()
    list(feed.take(HealthChanged("aws", SEEING, 1000.0), 1000.0))
    assert [one["name"] for one in feed.status(1000.0)] == ["aws"]
    assert list(feed.take(SourceGone("aws"), 1001.0)) == []
    assert feed.status(1001.0) == []
    assert list(feed.take(SourceGone("aws"), 1002.0)) == []
