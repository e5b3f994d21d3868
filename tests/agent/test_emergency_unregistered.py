"""Who cannot be told of a notice, or not yet: never registered, late, or without its socket, as told to the pure machine."""

from __future__ import annotations

import signal

from spotguard.hooks.protocol import Leave, Preempt
from tests.agent.telling import only
from tests.fakes.story import Story

TERM = signal.SIGTERM


def test_who_never_registered_gets_the_signal_at_once_and_the_rest_of_the_window() -> None:
    """Its own handler may save: TERM now, SIGKILL at the reserve."""
    story = Story()
    story.notice()
    assert only(story.signals) == [TERM]
    story.until(107)
    assert not story.killed
    story.until(108)
    assert story.killed
    story.ends(-9)
    assert story.outcomes[0].ended == "signalled, then killed at the reserve"


def test_signal_none_leaves_it_alone_until_the_reserve() -> None:
    """`--signal none`."""
    story = Story(signal=None)
    story.notice()
    assert only(story.signals) == []
    story.until(108)
    assert story.killed


def test_a_late_registration_learns_the_pending_notice_and_takes_part() -> None:
    """It has fewer seconds, and its commit ends the command."""
    story = Story(signal=None)
    story.notice()
    story.until(20)
    session = story.opens()
    ((number, preempt),) = story.sent(Preempt)
    assert (number, preempt.seconds_left) == (session, 100.0)
    story.commits(session)
    assert story.sent(Leave)


def test_who_registers_while_the_others_leave_is_not_cut_off() -> None:
    """It was told to save like everybody: the TERM that follows a `Leave` waits for its answer, or the reserve."""
    story = Story()
    session = story.opens()
    story.notice()
    story.commits(session)
    late = story.opens(pid=500)
    story.until(15)
    assert TERM not in story.signals
    story.fails(late, "training has not begun yet")
    assert TERM in story.signals


def test_a_lost_socket_is_waited_for_and_its_return_replaces_it() -> None:
    """A process that lives without its socket may be saving; back again, it is told again."""
    story = Story()
    first = story.opens()
    story.notice()
    story.closes(first, alive=True)
    story.until(3)
    assert only(story.signals) == []
    second = story.opens()
    story.commits(second)
    assert story.sent(Leave) == [(second, Leave("n1", 75))]
    story.ends(75)
    assert len(story.outcomes[0].sessions) == 1


def test_a_socket_that_is_down_for_a_moment_costs_no_save() -> None:
    """Law 11: lost just before the notice, back just after it. No TERM, and its commit counts."""
    story = Story()
    first = story.opens()
    story.closes(first, alive=True)
    story.notice()
    story.until(1.5)
    assert only(story.signals) == []
    second = story.opens()
    story.until(50)
    assert only(story.signals) == []
    story.commits(second)
    assert story.sent(Leave) == [(second, Leave("n1", 75))]


def test_a_socket_that_stays_down_gets_the_signal() -> None:
    """Nobody can tell it but by the signal, two seconds later; at once where its process is gone."""
    story = Story()
    story.closes(story.opens(), alive=True)
    story.notice()
    story.until(2)
    assert only(story.signals) == [TERM]
    other = Story()
    session = other.opens()
    other.closes(session, alive=True)
    other.notice()
    other.closes(session)
    assert only(other.signals) == [TERM]


def test_the_others_do_not_end_before_a_lost_one_could_come_back() -> None:
    """One rank has committed at once; another one's socket is down: the launcher is not ended under it."""
    story = Story()
    here, away = story.opens(201), story.opens(202)
    story.closes(away, alive=True)
    story.notice()
    story.commits(here)
    assert only(story.signals) == []
    back = story.opens(202)
    story.until(10)
    assert only(story.signals) == []
    story.commits(back)
    assert only(story.signals) == [TERM]


def test_a_process_that_lost_its_socket_and_then_dies_has_failed() -> None:
    """The agent follows it after the socket."""
    story = Story()
    session = story.opens(201)
    story.notice()
    story.closes(session, alive=True)
    story.until(3)
    story.closes(session)
    assert only(story.signals) == [TERM]
