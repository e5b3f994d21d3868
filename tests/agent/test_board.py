"""What a watching agent is told: that we live, how well we see, and the notices that still mean something."""

from __future__ import annotations

from spotguard.agent.board import BEAT, Board
from spotguard.agent.events import HealthChanged, NoticeSeen
from spotguard.agent.telling import OUTLIVED
from spotguard.hooks import protocol
from spotguard.providers.health import SEEING
from tests.fakes.source import a_notice

NOTICE = a_notice(deadline=1120.0, seen_at=1000.0)


def test_who_comes_is_told_what_is_watched() -> None:
    """First of all, also where nothing has been seen yet."""
    assert list(Board(2).joined(7, 1000.0)) == [(7, protocol.Watched(2))]


def test_signs_of_life_come_while_somebody_watches() -> None:
    """Each with the health of every source; nobody is woken for nobody."""
    board = Board(1)
    assert board.next_beat is None
    list(board.note(HealthChanged("aws", SEEING, 1000.0), 1000.0))
    list(board.joined(7, 1000.0))
    assert board.next_beat == 1000.0 + BEAT
    assert list(board.beat(1000.0 + BEAT - 0.1)) == []
    said = [protocol.Watched(1), protocol.HealthSeen("aws", "seeing")]
    assert list(board.beat(1000.0 + BEAT)) == [(7, message) for message in said]
    assert board.next_beat == 1000.0 + 2 * BEAT
    board.left(7)
    assert board.next_beat is None
    assert list(board.beat(1000.0 + 9 * BEAT)) == []


def test_a_notice_that_stands_is_told_until_the_machine_has_outlived_it() -> None:
    """With the seconds that are left; AWS shows it for ever, and who comes an hour later has nothing to fear."""
    board = Board(1)
    list(board.note(NoticeSeen(NOTICE), 1000.0))

    def told(now: float) -> list[float]:
        heard = [message for _, message in board.joined(7, now)]
        return [message.seconds_left for message in heard if isinstance(message, protocol.NoticeSeen)]

    assert told(1020.0) == [100.0]
    assert told(1120.0 + OUTLIVED - 1) == [0.0]
    assert told(1120.0 + OUTLIVED) == []


def test_a_notice_that_is_outlived_is_no_news() -> None:
    """Neither for those who watch already."""
    board = Board(1)
    list(board.joined(7, 1000.0))
    assert list(board.note(NoticeSeen(NOTICE), 1120.0 + OUTLIVED)) == []
