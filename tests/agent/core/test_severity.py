"""What merely warns, what nobody knows, and what is said in two places: stories told to the pure machine."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from spotguard.agent.actions import Log
from spotguard.agent.core.notices import COOL_DOWN, NEAR
from spotguard.hooks.ipc.protocol import CheckpointNow, Preempt, Withdrawn
from spotguard.providers.notice import NoticeKind
from tests.agent.core.far_off import HOUR, advisory, later, logged, undisturbed
from tests.fakes.story import Story

# --- advisory ---


def test_a_warning_is_a_checkpoint_and_nothing_else() -> None:
    """Training goes on, and `--every off` is a word that it leaves standing."""
    story = Story()
    session = story.opens()
    advisory(story)
    assert story.sent(CheckpointNow) == [
        (session, CheckpointNow("rebalance from aws spot/instance-action", going=False))
    ]
    assert len(logged(story, "training continues")) == 1
    story.until(10 * HOUR)
    undisturbed(story)


def test_a_storm_of_warnings_is_one() -> None:
    """30 in a quarter of an hour: one line, one checkpoint. After the cool-down the next one counts."""
    story = Story()
    story.opens()
    for n in range(30):
        story.until(n * (COOL_DOWN - 1) / 30)
        advisory(story, f"warning-{n}")
    assert len(story.sent(CheckpointNow)) == 1
    assert len(logged(story, "rebalance")) == 2
    undisturbed(story)
    story.until(COOL_DOWN)
    advisory(story, "another")
    assert len(story.sent(CheckpointNow)) == 2


def test_a_warning_when_nobody_is_there_costs_no_cool_down() -> None:
    story = Story()
    advisory(story)
    story.opens()
    advisory(story, "another")
    assert len(story.sent(CheckpointNow)) == 1


def test_a_warning_beside_a_notice_changes_nothing() -> None:
    """In either order, and when it goes."""
    story = Story()
    story.opens()
    story.notice(120)
    advisory(story)
    story.gone("warning")
    assert story.sent(CheckpointNow) == []
    assert len(story.sent(Preempt)) == 1
    assert story.sent(Withdrawn) == []
    story.until(107)
    assert not story.killed
    story.until(108)
    assert story.killed


@pytest.mark.parametrize("come", [advisory, lambda story: later(story, NEAR)], ids=["a warning", "near"])
@pytest.mark.parametrize("committed", [True, False])
def test_a_checkpoint_that_is_wanted_in_a_drill_is_asked_for_behind_it(
    come: Callable[[Story], object], committed: bool
) -> None:
    """The drill is another user's, or fails: nothing else would be saved before the end."""
    story = Story(command=False)
    alice, bob = story.opens(11, uid=1000), story.opens(22, uid=2000)
    story.asks(uid=1000)
    come(story)
    assert story.sent(CheckpointNow) == []
    _ = story.commits(alice) if committed else story.fails(alice)
    assert [session for session, _ in story.sent(CheckpointNow)] == [alice, bob]


def test_a_warning_that_becomes_a_notice_is_one() -> None:
    """By id: what was a recommendation is a reclaim now."""
    story = Story()
    story.opens()
    advisory(story)
    story.notice(120, id="warning")
    assert len(story.sent(Preempt)) == 1
    assert story.machine.upcoming.status(story.now) == []


# --- unknown, and one event in two places ---


def test_a_kind_that_nobody_knows_is_the_end_and_is_said_loudly() -> None:
    story = Story()
    story.opens()
    story.notice(30.0, kind=NoticeKind.UNKNOWN, window=30.0)
    assert len(story.sent(Preempt)) == 1
    (loud,) = [log for log in story.all(Log) if log.level == logging.ERROR]
    assert "does not know" in loud.text


def test_one_instant_that_a_cloud_says_in_two_places_is_one_notice() -> None:
    """AWS: `spot/instance-action` and `spot/termination-time`. It is withdrawn when neither shows it."""
    story = Story()
    session = story.opens()
    story.notice(120, id="action")
    story.until(1)
    story.notice(119, id="time", source="aws spot/termination-time")
    story.gone("action")
    assert story.sent(Withdrawn) == []
    assert len(story.sent(Preempt)) == 1
    assert logged(story, "another notice") == []
    story.commits(session)
    story.ends(75)
    assert len(story.outcomes) == 1


def test_notices_of_two_clouds_are_never_one() -> None:
    """Only one of them can be this machine's, and nobody knows which."""
    story = Story()
    story.opens()
    story.notice(120, id="a")
    story.notice(120, id="b", source="gcp preempted")
    assert len(logged(story, "another notice")) == 1
