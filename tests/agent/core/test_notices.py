"""Several notices, the same one again, one that is withdrawn, and the budget: stories told to the pure machine."""

from __future__ import annotations

import signal

import pytest

from spotguard.agent.actions import Finish, Log
from spotguard.hooks.ipc.protocol import Leave, Preempt, Progress, Withdrawn
from spotguard.providers.notice import NoticeKind
from tests.fakes.story import START, Story

TERM, KILL, CONT, INT = signal.SIGTERM, signal.SIGKILL, signal.SIGCONT, signal.SIGINT


def only(signals: list[int]) -> list[int]:
    """Without the SIGCONT that wakes a stopped command at a notice."""
    return [s for s in signals if s != CONT]


# --- the same notice, several notices, no notice ---


def test_the_same_notice_polled_again_changes_nothing() -> None:
    """By id, however its deadline wobbles upwards."""
    story = Story()
    story.opens()
    story.notice(120)
    story.until(1)
    assert story.notice(121) == []
    assert len(story.sent(Preempt)) == 1


def test_the_same_notice_under_another_id_is_the_same() -> None:
    """By content: a cloud may number one event twice."""
    story = Story()
    session = story.opens()
    story.notice(120, id="a")
    story.notice(121, id="b")
    assert len(story.sent(Preempt)) == 1
    story.commits(session)
    story.ends(75)
    assert len(story.outcomes) == 1


def test_an_earlier_deadline_is_told_again_with_fewer_seconds() -> None:
    """And the kill comes earlier with it."""
    story = Story()
    story.opens()
    story.notice(120)
    story.until(10)
    story.notice(60)
    lefts = [preempt.seconds_left for _, preempt in story.sent(Preempt)]
    assert lefts == [120.0, 60.0]
    story.until(64)
    assert story.killed


def test_an_earlier_deadline_never_gives_a_save_more_time() -> None:
    """Half of the seconds that are left is less than the reserve of the first notice: the kill stays where that one put it."""
    story = Story(reserve=10.0)
    story.opens()
    story.notice(21, id="a")
    story.until(9)
    story.notice(11.5, id="b")
    story.until(10.99)
    assert not story.killed
    story.until(11)
    assert story.killed


def test_a_later_deadline_is_not_believed() -> None:
    """Earliest wins, also between two notices."""
    story = Story()
    story.opens()
    story.notice(60, id="a")
    story.notice(120, id="b", kind=NoticeKind.STOP)
    story.until(54)
    assert story.killed


def test_two_notices_have_one_record_that_names_both() -> None:
    """Each notice is in exactly one outcome."""
    story = Story()
    session = story.opens()
    story.notice(120, id="a")
    story.notice(60, id="b", kind=NoticeKind.STOP)
    story.commits(session)
    story.ends(75)
    (outcome,) = story.outcomes
    assert (outcome.id, outcome.also) == ("a", ("b",))


def test_withdrawn_before_the_commit_training_goes_on() -> None:
    """Nobody leaves, nothing is signalled, and the outcome says so."""
    story = Story()
    session = story.opens()
    story.notice()
    story.gone()
    assert story.sent(Withdrawn) == [(session, Withdrawn("n1"))]
    story.until(300)
    assert only(story.signals) == []
    assert story.code is None
    assert [o.ended for o in story.outcomes] == ["withdrawn"]
    story.ends(0)
    assert story.code == 0


def test_withdrawn_and_shown_again_it_counts_again() -> None:
    """A missed preemption costs more than a second alarm."""
    story = Story()
    story.opens()
    story.notice()
    story.gone()
    story.until(5)
    story.notice()
    assert len(story.sent(Preempt)) == 2


def test_withdrawn_only_when_every_notice_is_gone() -> None:
    """A second one still stands."""
    story = Story()
    story.opens()
    story.notice(id="a")
    story.notice(90, id="b", kind=NoticeKind.STOP)
    story.gone("a")
    assert not story.sent(Withdrawn)
    story.gone("b")
    assert story.sent(Withdrawn)


def test_withdrawn_after_the_leave_ends_all_the_same() -> None:
    """There is no way back for a process that is leaving."""
    story = Story()
    session = story.opens()
    story.notice()
    story.commits(session)
    story.gone()
    assert not story.sent(Withdrawn)
    story.ends(75)
    assert story.code == 75


def test_an_end_by_the_signal_of_a_withdrawn_notice_is_a_preemption() -> None:
    """The TERM cannot be taken back: its effect is not the command's own code."""
    story = Story()
    story.notice()
    story.gone()
    story.until(2)
    story.ends(-15)
    assert story.code == 75
    assert len(story.outcomes) == 1


# --- budgets ---


@pytest.mark.parametrize(
    ("left", "window", "reserve", "limit"),
    [
        (120, 120, None, 108),  # a tenth of what is left
        (25, 25, None, 22),  # three seconds
        (120, 120, 30.0, 90),  # as said
        (29, 120, None, 26),  # seen late
        (10, 120, None, 7),
        (4, 120, None, 2),  # half of what is left
        (2, 120, None, 1),
        (0, 0, None, 7),  # hibernation: no window, still a try of 10 s
        (-5, 120, None, 7),  # past
    ],
)
def test_the_kill_comes_when_the_reserve_begins(
    left: float, window: float, reserve: float | None, limit: float
) -> None:
    """And the reserve never eats the save's last half."""
    story = Story(reserve=reserve)
    story.opens()
    story.notice(left, window=window)
    story.until(limit - 0.01)
    assert not story.killed
    story.until(limit)
    assert story.killed


def test_a_window_that_is_over_is_not_said_to_be_longer() -> None:
    """The try that is made all the same is named as one."""
    story = Story()
    story.opens()
    story.notice(0.4)
    (line,) = [log.text for log in story.all(Log) if "notice from" in log.text]
    assert "0.4 s left, 10.0 s tried all the same" in line


def test_window_says_what_to_count_on() -> None:
    """`--window 30`: shorter than the cloud's word, never longer."""
    story = Story(window=30.0)
    story.opens()
    story.notice(120)
    assert story.sent(Preempt)[0][1].seconds_left == 30.0
    longer = Story(window=300.0)
    longer.opens()
    longer.notice(120)
    assert longer.sent(Preempt)[0][1].seconds_left == 120.0


def test_progress_is_kept_for_the_outcome() -> None:
    """First byte, step and bytes of a save that was cut off."""
    story = Story()
    session = story.opens()
    story.notice()
    story.until(1)
    story.says(session, Progress("n1", "first-byte", story.now, step=42))
    story.says(session, Progress("n1", "writing", story.now, step=42, done_bytes=10, total_bytes=100))
    story.until(108)
    story.ends(-9)
    (outcome,) = story.outcomes
    assert (outcome.first_byte, outcome.bytes, outcome.committed, outcome.step) == (1.0, 10, None, None)
    assert outcome.sessions[0].step == 42


def test_a_commit_for_another_notice_does_not_count() -> None:
    """A late word of an old drill ends nothing."""
    from spotguard.hooks.ipc.protocol import Committed

    story = Story()
    session = story.opens()
    story.notice()
    story.says(session, Committed("drill-1", 3, 10, 0.1, "u", story.now))
    story.says(session, Committed("", 3, 10, 0.1, "u", story.now))
    assert not story.sent(Leave)


def test_a_deadline_that_is_new_at_each_look_is_told_once() -> None:
    """AWS's public mock gives two minutes from each request on: the run ends at the deadline that it named."""
    story = Story()
    session = story.opens()
    story.notice(120, id="first")
    for second in range(1, 100):
        story.until(second)
        story.notice(120, id=f"look-{second}")
    assert len(story.sent(Preempt)) == 1
    assert not [a for _, a in story.log if isinstance(a, Log) and "another notice" in a.text]
    assert story.machine.preemption is not None
    assert story.machine.preemption.machine_deadline == START + 120
    story.commits(session)
    story.ends(75)
    assert len(story.outcomes) == 1


def test_a_run_that_began_in_vain_ends_at_the_deadline_that_it_named() -> None:
    """Though a further one is shown at each look."""
    story = Story(age=0.0)
    story.notice(120, id="first")
    story.opens()
    story.ends(1)
    for second in range(1, 125):
        story.until(second)
        story.notice(120, id=f"look-{second}")
    assert story.code == 75
    assert story.times(Finish) == [120.0]
    assert len(story.outcomes) == 1
