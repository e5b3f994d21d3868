"""What is far off: a line in the log, then a checkpoint, then a notice; stories told to the pure machine."""

from __future__ import annotations

import pytest

from spotguard.agent.core.notices import NEAR, WINDOW
from spotguard.hooks.ipc.protocol import CheckpointNow, Preempt, Withdrawn
from spotguard.providers.notice import NoticeKind
from tests.agent.core.far_off import HOUR, advisory, later, logged, undisturbed
from tests.fakes.story import Story

# --- later ---


def test_training_goes_on_until_a_far_deadline_is_near() -> None:
    """Days off it is a line in the log; then a checkpoint, then a notice with what is left."""
    story = Story()
    session = story.opens()
    later(story, 3 * 86400.0)
    assert len(logged(story, "reboot from azure scheduled-events in 3 d")) == 1
    story.until(3 * 86400.0 - NEAR - 1)
    undisturbed(story)
    assert story.sent(CheckpointNow) == []
    story.until(3 * 86400.0 - NEAR)
    ((asked, checkpoint),) = story.sent(CheckpointNow)
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
        assert len(story.sent(CheckpointNow)) == asked


@pytest.mark.parametrize("left", [WINDOW, 40.0, 0.0, -5.0])
def test_first_seen_when_it_is_near_it_is_a_notice_at_once(left: float) -> None:
    """Also where the deadline has just passed: the try costs nothing."""
    story = Story()
    story.opens()
    later(story, left)
    ((_, preempt),) = story.sent(Preempt)
    assert preempt.seconds_left == (left if left >= 1 else 10.0)
    assert story.sent(CheckpointNow) == []


def test_first_seen_with_minutes_left_the_checkpoint_is_asked_for_at_once() -> None:
    story = Story()
    story.opens()
    later(story, 200.0)
    assert len(story.sent(CheckpointNow)) == 1
    undisturbed(story)


def test_a_session_that_registers_near_the_deadline_is_asked_for_a_checkpoint() -> None:
    """An agent that starts again knows the deadline before its sessions are back."""
    story = Story()
    later(story, 200.0)
    session = story.opens()
    assert [number for number, _ in story.sent(CheckpointNow)] == [session]


def test_a_process_with_a_callback_alone_is_not_asked_for_a_checkpoint() -> None:
    """A function given to `on_notice` has nothing to save."""
    story = Story()
    story.opens(checkpoints=False)
    later(story, 200.0)
    story.opens(101, checkpoints=False)
    assert story.sent(CheckpointNow) == []


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


def test_an_upcoming_notice_that_begins_is_a_notice_now() -> None:
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
    assert story.machine.upcoming.status(story.now) == []


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
    assert len(story.sent(CheckpointNow)) == 1


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
def test_an_upcoming_notice_that_begins_after_its_time_is_a_notice(outlive: bool) -> None:
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


# --- for status ---


def test_status_says_what_will_be_done_and_when() -> None:
    story = Story()
    story.opens()
    later(story, HOUR)
    advisory(story)
    story.until(600)
    one, two = story.machine.upcoming.status(story.now)
    assert (one["kind"], one["severity"], one["seconds_left"]) == ("reboot", "later", 3000.0)
    assert (one["then"], one["then_in"], one["for_seconds"]) == ("checkpoint", 2700.0, 600.0)
    assert (two["kind"], two["seconds_left"], two["then"], two["then_in"]) == (
        "rebalance",
        None,
        "training continues",
        None,
    )
    story.until(HOUR - 200)
    one = story.machine.upcoming.status(story.now)[0]
    assert (one["then"], one["then_in"]) == ("terminal notice", 80.0)
