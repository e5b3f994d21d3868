"""What is far off, and what merely warns: stories told to the pure machine."""

from __future__ import annotations

import logging
import signal

import pytest

from spotguard.agent.actions import Action, Announce, Finish, Log, Send
from spotguard.agent.horizon import COOL_DOWN, NEAR, WINDOW
from spotguard.hooks.protocol import Checkpoint, Preempt, Withdrawn
from spotguard.providers.notice import NoticeKind, Severity
from tests.fakes.story import START, Story

HOUR = 3600.0


def later(
    story: Story,
    left: float = HOUR,
    id: str = "later",
    *,
    source: str = "azure scheduled-events",
    kind: NoticeKind = NoticeKind.REBOOT,
) -> list[Action]:
    return story.notice(left, id=id, kind=kind, severity=Severity.LATER, source=source, window=7 * 86400.0)


def advisory(story: Story, id: str = "warning") -> list[Action]:
    return story.notice(0.0, id=id, kind=NoticeKind.REBALANCE, severity=Severity.ADVISORY)


def undisturbed(story: Story) -> None:
    """Nobody was told to save or to go, and nothing was signalled."""
    assert story.machine.pending is None
    assert (story.sent(Preempt), story.sent(Withdrawn), story.signals) == ([], [], [])
    assert (story.outcomes, story.killed, story.code) == ([], False, None)


def logged(story: Story, words: str) -> list[str]:
    return [log.text for log in story.all(Log) if words in log.text]


# --- later ---


def test_training_goes_on_until_a_far_deadline_is_near() -> None:
    """Days off it is a line in the log; then a checkpoint, then a notice with what is left."""
    story = Story()
    session = story.opens()
    later(story, 3 * 86400.0)
    assert len(logged(story, "reboot from azure scheduled-events in 3 d")) == 1
    story.until(3 * 86400.0 - NEAR - 1)
    undisturbed(story)
    assert story.sent(Checkpoint) == []
    story.until(3 * 86400.0 - NEAR)
    ((asked, checkpoint),) = story.sent(Checkpoint)
    assert (asked, checkpoint.going) == (session, True)
    assert checkpoint.reason == "reboot from azure scheduled-events in 5 min"
    story.until(3 * 86400.0 - WINDOW - 1)
    undisturbed(story)
    story.until(3 * 86400.0 - WINDOW)
    ((_, preempt),) = story.sent(Preempt)
    assert (preempt.id, preempt.seconds_left, preempt.reserve) == ("later", WINDOW, WINDOW / 10)
    story.commits(session)
    story.ends(75)
    assert story.code == 75
    (outcome,) = story.outcomes
    assert (outcome.kind, outcome.left, outcome.window) == ("reboot", WINDOW, WINDOW)
    assert outcome.committed == 0  # counted from when it became a notice, not from when it was first heard of


def test_window_says_how_long_before_the_deadline_the_notice_comes() -> None:
    """Longer too: a state that needs ten minutes gets them."""
    for window in (30.0, 600.0):
        story = Story(window=window)
        story.opens()
        later(story)
        story.until(HOUR - window - 1)
        undisturbed(story)
        story.until(HOUR - window)
        assert [preempt.seconds_left for _, preempt in story.sent(Preempt)] == [window]
        asked = 1 if window < NEAR else 0  # a notice is more than a checkpoint
        assert len(story.sent(Checkpoint)) == asked


@pytest.mark.parametrize("left", [WINDOW, 40.0, 0.0, -5.0])
def test_first_seen_when_it_is_near_it_is_a_notice_at_once(left: float) -> None:
    """Also where the deadline has just passed: the try costs nothing."""
    story = Story()
    story.opens()
    later(story, left)
    ((_, preempt),) = story.sent(Preempt)
    assert preempt.seconds_left == (left if left >= 1 else 10.0)
    assert story.sent(Checkpoint) == []


def test_first_seen_with_minutes_left_the_checkpoint_is_asked_for_at_once() -> None:
    story = Story()
    story.opens()
    later(story, 200.0)
    assert len(story.sent(Checkpoint)) == 1
    undisturbed(story)


def test_who_registers_when_it_is_near_is_asked_too() -> None:
    """An agent that starts again knows the deadline before its sessions are back."""
    story = Story()
    later(story, 200.0)
    session = story.opens()
    assert [number for number, _ in story.sent(Checkpoint)] == [session]


def test_who_does_not_know_the_word_is_not_sent_it() -> None:
    """An older hook would drop the connection over it, and a function given to `on_notice` has nothing to save."""
    story = Story()
    story.opens(checkpoints=False)
    later(story, 200.0)
    story.opens(101, checkpoints=False)
    assert story.sent(Checkpoint) == []


def test_a_far_deadline_moves_earlier_and_never_later() -> None:
    """Each move is said once."""
    story = Story()
    story.opens()
    later(story, 2 * HOUR)
    later(story, HOUR)
    later(story, HOUR)
    later(story, 5 * HOUR)
    assert len(logged(story, "moved earlier: 1 h left")) == 1
    story.until(HOUR - WINDOW)
    assert len(story.sent(Preempt)) == 1


def test_withdrawn_while_it_is_far_it_was_never_there() -> None:
    """Nothing is due any more, and it is said."""
    story = Story()
    story.opens()
    later(story)
    story.gone("later")
    assert len(logged(story, "was withdrawn")) == 1
    story.until(2 * HOUR)
    undisturbed(story)
    assert story.machine.next_wake is None


def test_withdrawn_after_it_became_a_notice_training_goes_on() -> None:
    """As any notice."""
    story = Story()
    session = story.opens()
    later(story)
    story.until(HOUR - 60)
    story.gone("later")
    assert story.sent(Withdrawn) == [(session, Withdrawn("later"))]
    assert [outcome.ended for outcome in story.outcomes] == ["withdrawn"]
    story.until(2 * HOUR)
    assert story.code is None
    assert not story.killed


def test_under_two_names_it_goes_with_the_last() -> None:
    """Azure's mock server renames an event between two looks: the new name comes before the old one goes."""
    story = Story()
    story.opens()
    later(story, id="a")
    later(story, id="b")
    story.gone("a")
    story.until(HOUR - WINDOW)
    ((_, preempt),) = story.sent(Preempt)
    assert preempt.id == "b"
    later(story, WINDOW, id="c")
    story.gone("b")
    assert story.sent(Withdrawn) == []
    story.gone("c")
    assert len(story.sent(Withdrawn)) == 1


def test_what_was_far_off_and_has_begun_is_a_notice_now() -> None:
    """Azure: `Scheduled` becomes `Started`. Its old deadline means nothing any more."""
    story = Story()
    session = story.opens()
    later(story)
    story.notice(10.0, id="later", kind=NoticeKind.REBOOT, source="azure scheduled-events", window=15.0)
    assert [preempt.seconds_left for _, preempt in story.sent(Preempt)] == [10.0]
    story.commits(session)
    story.ends(75)
    assert len(story.outcomes) == 1
    assert story.machine.next_wake is None


def test_a_notice_in_hand_seen_again_as_far_off_is_the_same_notice() -> None:
    """Its deadline only moves earlier, whatever it is called."""
    story = Story()
    story.opens()
    later(story, WINDOW)
    story.until(10)
    later(story, HOUR)
    later(story, 60.0)
    assert [preempt.seconds_left for _, preempt in story.sent(Preempt)] == [WINDOW, 60.0]
    assert story.machine.horizon.status(story.now) == []


def test_a_far_deadline_joins_a_notice_in_hand_when_it_is_due() -> None:
    """The earlier one still counts, and both are in the outcome."""
    story = Story()
    story.opens()
    later(story, 125.0)
    story.notice(120)
    story.until(10)
    assert [preempt.id for _, preempt in story.sent(Preempt)] == ["n1"]
    story.until(119)
    story.ends(-9)
    (outcome,) = story.outcomes
    assert (outcome.id, outcome.also) == ("n1", ("later",))


def test_many_deadlines_at_once_ask_for_one_checkpoint() -> None:
    """One as fresh as can be serves them all."""
    story = Story()
    story.opens()
    for n in range(30):
        later(story, HOUR + n * 5, f"later-{n}")
    story.until(HOUR - NEAR + 59)
    assert len(story.sent(Checkpoint)) == 1


def test_a_far_deadline_ends_a_drill_when_it_is_due() -> None:
    """It is a real notice."""
    story = Story()
    story.opens()
    later(story, 130.0)
    story.asks()
    story.until(10)
    assert [preempt.drill for _, preempt in story.sent(Preempt)] == [True, False]


def test_an_event_that_had_its_end_does_not_come_back() -> None:
    """Of a machine that outlived it: AWS may show it for ever."""
    story = Story(outlive=True)
    session = story.opens()
    later(story, WINDOW)
    story.commits(session)
    story.ends(75)
    story.until(WINDOW + 61)
    assert story.pid == 101
    later(story, 0.0)
    story.until(HOUR)
    assert len(story.outcomes) == 1
    assert len(story.sent(Preempt)) == 1


@pytest.mark.parametrize("outlive", [False, True])
def test_what_outlived_its_planned_time_and_then_begins_is_a_notice(outlive: bool) -> None:
    """Azure starts "not before": under a service, or with `--outlive`, training goes on meanwhile."""
    story = Story(outlive=True) if outlive else Story(command=False)
    session = story.opens()
    later(story)
    story.until(HOUR - WINDOW)
    story.commits(session)
    if outlive:
        story.ends(75)
    story.until(HOUR + 61)
    again = story.opens(story.pid if outlive else 200)
    story.until(2 * HOUR)
    told = len(story.sent(Preempt))
    story.notice(0.0, id="later", kind=NoticeKind.REBOOT, source="azure scheduled-events", window=30.0)
    assert [session for session, _ in story.sent(Preempt)[told:]][-1:] == [again]
    story.commits(again)
    if outlive:
        story.ends(75)
    story.until(3 * HOUR)
    told = len(story.sent(Preempt))
    story.opens(story.pid if outlive else 201)
    story.notice(0.0, id="later", kind=NoticeKind.REBOOT, source="azure scheduled-events", window=30.0)
    assert len(story.sent(Preempt)) == told  # it has begun once


def test_a_warning_that_has_got_a_deadline_and_is_withdrawn_ends_nothing() -> None:
    story = Story()
    story.opens()
    advisory(story, "later")
    later(story)
    story.gone("later")
    story.until(HOUR)
    undisturbed(story)


# --- advisory ---


def test_a_warning_is_a_checkpoint_and_nothing_else() -> None:
    """Training goes on, and `--every off` is a word that it leaves standing."""
    story = Story()
    session = story.opens()
    advisory(story)
    assert story.sent(Checkpoint) == [
        (session, Checkpoint("rebalance from aws spot/instance-action", going=False))
    ]
    assert len(logged(story, "training goes on")) == 1
    story.until(10 * HOUR)
    undisturbed(story)


def test_a_storm_of_warnings_is_one() -> None:
    """30 in a quarter of an hour: one line, one checkpoint. After the cool-down the next one counts."""
    story = Story()
    story.opens()
    for n in range(30):
        story.until(n * (COOL_DOWN - 1) / 30)
        advisory(story, f"warning-{n}")
    assert len(story.sent(Checkpoint)) == 1
    assert len(logged(story, "rebalance")) == 2
    undisturbed(story)
    story.until(COOL_DOWN)
    advisory(story, "another")
    assert len(story.sent(Checkpoint)) == 2


def test_a_warning_when_nobody_is_there_costs_no_cool_down() -> None:
    story = Story()
    advisory(story)
    story.opens()
    advisory(story, "another")
    assert len(story.sent(Checkpoint)) == 1


def test_a_warning_beside_a_notice_changes_nothing() -> None:
    """In either order, and when it goes."""
    story = Story()
    story.opens()
    story.notice(120)
    advisory(story)
    story.gone("warning")
    assert story.sent(Checkpoint) == []
    assert len(story.sent(Preempt)) == 1
    assert story.sent(Withdrawn) == []
    story.until(107)
    assert not story.killed
    story.until(108)
    assert story.killed


def test_a_warning_that_becomes_a_notice_is_one() -> None:
    """By id: what was a recommendation is a reclaim now."""
    story = Story()
    story.opens()
    advisory(story)
    story.notice(120, id="warning")
    assert len(story.sent(Preempt)) == 1
    assert story.machine.horizon.status(story.now) == []


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


def test_what_two_clouds_say_is_never_one_notice() -> None:
    """Only one of them can be this machine's, and nobody knows which."""
    story = Story()
    story.opens()
    story.notice(120, id="a")
    story.notice(120, id="b", source="gcp preempted")
    assert len(logged(story, "another notice")) == 1


# --- the operator's own command ---


def announced(story: Story) -> list[tuple[str, float, float]]:
    return [(a.notice.id, round(a.left, 3), round(a.until - START, 3)) for a in story.all(Announce)]


def test_each_notice_is_announced_once_and_has_until_the_reserve() -> None:
    """After the words to those who save; a second one beside it too, and not its moves."""
    story = Story()
    story.opens()
    story.notice(120)
    story.notice(100)
    story.notice(60, id="n2", kind=NoticeKind.STOP)
    assert announced(story) == [("n1", 120.0, 108.0), ("n2", 100.0, 88.0)]
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
    assert finish == Finish(75, START + 48)
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


# --- for status ---


def test_status_says_what_will_be_done_and_when() -> None:
    story = Story()
    story.opens()
    later(story, HOUR)
    advisory(story)
    story.until(600)
    one, two = story.machine.horizon.status(story.now)
    assert (one["kind"], one["severity"], one["seconds_left"]) == ("reboot", "later", 3000.0)
    assert (one["then"], one["then_in"], one["for_seconds"]) == ("checkpoint", 2700.0, 600.0)
    assert (two["kind"], two["seconds_left"], two["then"], two["then_in"]) == (
        "rebalance",
        None,
        "training goes on",
        None,
    )
    story.until(HOUR - 200)
    one = story.machine.horizon.status(story.now)[0]
    assert (one["then"], one["then_in"]) == ("terminal notice", 80.0)
