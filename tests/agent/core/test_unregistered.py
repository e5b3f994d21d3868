"""Who cannot be told of a notice, or not yet: never registered, late, or without its socket, as told to the pure machine."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from spotguard.agent.actions import Log
from spotguard.agent.core.command import UNREACHED
from spotguard.agent.events import Heard
from spotguard.agent.outcome import Outcome
from spotguard.hooks.ipc.protocol import Bye, Leave, Position, Preempt, Unattached
from tests.agent.core.telling import only
from tests.fakes.story import Story

TERM = signal.SIGTERM


def test_an_unregistered_command_gets_the_signal_at_once_and_the_rest_of_the_window() -> None:
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


def test_a_process_that_registers_while_others_leave_is_not_cut_off() -> None:
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


@pytest.mark.parametrize("preempt", [False, True])
def test_a_process_that_lost_its_socket_in_a_drill_is_told_again(preempt: bool) -> None:
    """And one that is new is not told of a drill after which training goes on."""
    story = Story(command=False)
    first = story.opens(500)
    story.asks(preempt=preempt)
    story.closes(first, alive=True)
    again = story.opens(500)
    assert [number for number, _ in story.sent(Preempt)] == [first, again]
    if not preempt:
        story.opens(501, rank=1)
    story.commits(again)
    (outcome,) = story.outcomes
    assert (outcome.committed, len(outcome.sessions)) == (0.0, 1)
    assert len(story.sent(Preempt)) == 2


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


def ended(returncode: int, *, at: float = 3.0) -> Outcome:
    """A command without a registered process is noticed, and ends so."""
    story = Story()
    story.notice()
    story.until(at)
    story.ends(returncode)
    assert story.code == 75
    (outcome,) = story.outcomes
    return outcome


def test_a_save_of_its_own_that_ended_with_0_is_no_failure() -> None:
    """Nobody can see what it saved: its code is all that there is, and the line claims no commit."""
    outcome = ended(0)
    assert (outcome.failed, outcome.ended_well, outcome.committed) == (False, True, None)
    assert outcome.line().endswith(
        "the command ended with 0 (no process was registered); signalled, exit code 75"
    )
    assert "COMMITTED" not in outcome.line()
    assert outcome.summary()["ended_well"] is True


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (12, "training had ended, and step 12 is committed"),
        (-1, "training had ended, and nothing was committed"),
    ],
)
def test_a_notice_behind_the_end_of_training_names_what_is_committed(step: int, why: str) -> None:
    """The command goes on: an upload, an evaluation."""
    story = Story()
    session = story.opens()
    story.on(Heard(session, Position(step=12, checkpoint_step=step)))
    story.on(Heard(session, Bye()))
    story.closes(session, alive=True)
    story.notice()
    story.ends(-TERM)
    assert story.outcomes[0].why == why


@pytest.mark.parametrize("returncode", [-TERM, 1, 75])
def test_any_other_end_of_it_is_reported_as_lost(returncode: int) -> None:
    outcome = ended(returncode)
    assert (outcome.failed, outcome.ended_well) == (True, False)
    assert "NOT COMMITTED (no process was registered)" in outcome.line()


def test_a_command_that_was_killed_has_not_ended_well() -> None:
    assert ended(0, at=108).failed, "what it did before SIGKILL is not known"


def test_a_command_that_had_come_to_its_end_is_no_failure() -> None:
    """`--signal none`: no signal was sent, and it was simply done."""
    story = Story(signal=None)
    story.notice()
    story.ends(0)
    assert (story.code, story.outcomes[0].failed) == (0, False)


def test_a_training_process_that_did_not_commit_is_a_failure_whatever_the_code() -> None:
    story = Story()
    session = story.opens()
    story.notice()
    story.fails(session)
    story.ends(0)
    assert story.outcomes[0].failed


def test_a_drill_of_a_command_that_saves_by_itself_is_played_to_the_end_only() -> None:
    """The signal cannot be taken back, so a plain drill says how to rehearse it, and nothing is sent."""
    story = Story()
    story.asks()
    (tell,) = story.tells
    assert (
        "no training process is registered here; if the command saves by itself at SIGTERM"
        in tell.body["error"]
    )
    assert "spotguard drill --preempt" in tell.body["error"]
    assert story.signals == []
    story.asks(preempt=True)
    assert only(story.signals) == [TERM]
    story.until(1)
    story.ends(0)
    assert story.code == 75
    told = story.tells[-1].body["outcome"]
    assert (told["drill"], told["ended_well"], told["code"]) == (True, True, 75)


@pytest.mark.parametrize("policy", [{"signal": None}, {"command": False}])
def test_a_drill_is_refused_where_nobody_would_be_told(policy: dict[str, Any]) -> None:
    """`--signal none`, and a service, which signals nobody."""
    story = Story(**policy)
    story.asks(preempt=True)
    assert story.tells[-1].body == {
        "error": "no training process is registered here: nothing would be saved [SG107]"
    }
    assert story.machine.preemption is None
    assert story.signals == []


def test_a_drill_of_one_user_does_not_end_what_another_one_trains() -> None:
    """Under sudo the training is root's, and so is its drill."""
    story = Story()
    story.opens(uid=0)
    story.asks(uid=1000, preempt=True)
    assert "nothing would be saved [SG107]" in story.tells[-1].body["error"]
    assert story.signals == []


IMPORTED = "transformers.trainer was imported, and its Trainer.train() not called yet"


@pytest.mark.parametrize("told", [None, IMPORTED])
def test_a_refused_drill_the_outcome_and_the_log_name_why_nothing_is_attached(
    told: str | None,
) -> None:
    story = Story(attach=True)
    if told is not None:
        story.on(Heard(7, Unattached(told)))
    why = told or UNREACHED
    story.asks()
    assert why in story.tells[-1].body["error"]
    story.notice()
    story.ends(-TERM)
    (outcome,) = story.outcomes
    assert outcome.why == f"nothing was attached: {why}"
    assert f"NOT COMMITTED (nothing was attached: {why})" in outcome.line()

    story = Story(attach=True)
    if told is not None:
        story.on(Heard(7, Unattached(told)))
    story.ends(0)
    (line,) = (each.text for each in story.all(Log) if "--attach" in each.text)
    assert line == f"--attach has guarded nothing: {why}"


def test_the_outcome_names_what_is_attached_in_each_session() -> None:
    story = Story(attach=True)
    story.on(Heard(7, Unattached(IMPORTED)))
    session = story.opens(attached="Trainer of transformers 5.24.0")
    assert story.machine.unattached == ""
    story.notice()
    story.commits(session)
    story.ends(75)
    (outcome,) = story.outcomes
    assert [each.attached for each in outcome.sessions] == ["Trainer of transformers 5.24.0"]
    assert outcome.summary()["sessions"][0]["attached"] == "Trainer of transformers 5.24.0"


def test_nothing_is_said_of_attaching_where_it_was_not_asked_for() -> None:
    story = Story()
    story.on(Heard(7, Unattached(IMPORTED)))
    story.notice()
    story.ends(-TERM)
    assert story.outcomes[0].why == "no process was registered"
