"""The operator's own command runs once for each notice and is waited for: stories told to the pure machine."""

from __future__ import annotations

import signal

from spotguard.agent.actions import Announce, Finish, Send
from spotguard.agent.core.notices import WINDOW
from spotguard.providers.notice import NoticeKind, Severity
from tests.agent.core.far_off import HOUR, advisory, later
from tests.fakes.story import START, Story


def announced(story: Story) -> list[tuple[str, float, float]]:
    return [(a.notice.id, round(a.left, 3), round(a.until - START, 3)) for a in story.all(Announce)]


def test_each_notice_is_announced_once_and_has_until_the_reserve() -> None:
    """After the words to those who save; a second one beside it too, and not its moves."""
    story = Story()
    story.opens()
    story.notice(120)
    story.notice(100)
    story.notice(60, id="n2", kind=NoticeKind.STOP)
    assert announced(story) == [("n1", 120.0, 108.0), ("n2", 100.0, 90.0)]
    kinds = [type(action) for _, action in story.log]
    assert kinds.index(Announce) > kinds.index(Send)


def test_a_far_event_is_announced_when_it_becomes_a_notice_and_a_warning_never() -> None:
    """What runs then may drain a node: it runs when the machine goes."""
    story = Story()
    story.opens()
    advisory(story)
    later(story, HOUR)
    story.until(HOUR - WINDOW - 1)
    assert announced(story) == []
    story.until(HOUR - WINDOW)
    ((id, left, _),) = announced(story)
    assert (id, left) == ("later", WINDOW)
    assert story.all(Announce)[0].notice.severity is Severity.TERMINAL


def test_a_drill_is_announced_where_it_is_played_to_the_end() -> None:
    for preempt in (False, True):
        story = Story()
        story.opens()
        story.asks(preempt=preempt)
        assert len(announced(story)) == int(preempt)


def test_the_end_waits_for_it_until_the_reserve_and_not_when_somebody_wants_the_end() -> None:
    """By the limit as it is then: it may have moved."""
    story = Story()
    session = story.opens()
    story.notice(120)
    story.notice(60)
    story.commits(session)
    story.ends(75)
    (finish,) = story.all(Finish)
    assert finish == Finish(75, START + 54)
    story = Story()
    story.opens()
    story.signal(signal.SIGTERM)
    story.until(2)
    story.signal(signal.SIGTERM)
    story.ends(-15)
    assert [finish.until for finish in story.all(Finish)] == [0.0]
    story = Story()
    story.ends(0)
    assert [finish.until for finish in story.all(Finish)] == [0.0]
