"""Another machine of the job was noticed: stories of the one that stays, told to the pure machine."""

from __future__ import annotations

import signal

import pytest

from spotguard.agent.actions import Announce, Log
from spotguard.hooks.ipc.protocol import Committed, Leave, Preempt, Resume, Withdrawn
from tests.agent.core.telling import terms, torchrun
from tests.fakes.story import Story

TERM = signal.SIGTERM


def test_a_call_from_every_rank_is_one_notice_for_all() -> None:
    """Whoever hears it first says it; all are told, once, and the machine of the operator does not go."""
    story, sessions = torchrun()
    for session in sessions:
        story.called(session)
    told = story.sent(Preempt)
    assert [number for number, _ in told] == sessions
    assert {(said.id, said.kind, said.drill) for _, said in told} == {("x", "peer", False)}
    assert not story.all(Announce)
    assert not story.outcomes


def test_the_command_is_ended_after_every_commit_here_and_started_again_at_once() -> None:
    """TERM to the launcher when all have answered, a new start when it is gone, and no crash is counted."""
    story, (first, second) = torchrun(max_restarts=0)
    story.called(first)
    story.until(100)
    story.commits(first)
    assert not terms(story)
    story.commits(second)
    assert terms(story) == [TERM]
    assert not story.sent(Leave)
    story.closes(first)
    story.closes(second)
    story.ends(-15)
    assert (story.pid, story.code, story.machine.restarts) == (101, None, 0)
    (outcome,) = story.outcomes
    assert (outcome.id, outcome.kind, outcome.source) == ("x", "peer", "aws spot/instance-action")
    assert (outcome.left, outcome.step, outcome.committed, outcome.slack) == (118.0, 7, 100.0, None)
    assert (outcome.ended, outcome.returncode, outcome.code) == ("TERM after the commit", -15, None)
    assert outcome.line().startswith(
        "another machine's notice (terminate: rack 7) from aws spot/instance-action: COMMITTED step 7 in 100.00 s"
    )
    story.ends(0)
    assert story.code == 0


def test_a_child_that_trains_itself_is_told_to_leave() -> None:
    """One process for each machine, started by hand: `run` has no launcher below it."""
    story = Story()
    session = story.opens()
    story.called(session)
    story.commits(session)
    assert story.sent(Leave) == [(session, Leave("x", 75))]
    story.ends(75)
    assert (story.pid, story.code) == (101, None)


def test_survivors_may_save_long_after_the_noticed_machine_is_gone() -> None:
    """Nothing goes here, so nobody is killed for being slow; and nobody is waited for without end."""
    story, (first, second) = torchrun()
    story.called(first, left=30.0)
    story.commits(first)
    story.until(500)
    assert not terms(story)
    assert not story.killed
    story.commits(second)
    assert terms(story) == [TERM]
    story.until(514)
    assert not story.killed
    story.until(515)
    assert story.killed


def test_a_save_that_never_ends_is_ended_after_ten_minutes() -> None:
    """And the job is started again all the same: without the other machine's ranks it cannot go on."""
    story, sessions = torchrun()
    story.called(sessions[0])
    story.until(600)
    assert story.killed
    for session in sessions:
        story.closes(session)
    story.ends(-9)
    assert story.pid == 101
    assert story.outcomes[0].committed is None


@pytest.mark.parametrize("dies", [True, False])
def test_without_a_commit_the_job_is_started_again_all_the_same(dies: bool) -> None:
    """The ranks of the other machine are gone: training cannot go on here either."""
    story, (first, second) = torchrun(max_restarts=0)
    story.called(first)
    story.fails(first)
    if not dies:
        story.fails(second)
    story.closes(second)
    story.closes(first)
    story.ends(1)
    assert (story.pid, story.code) == (101, None)
    assert story.outcomes[0].committed is None


def test_a_launcher_that_ends_first_is_waited_for_by_nobody_who_saves() -> None:
    """The rendezvous is gone, and torchrun with it: its workers save on, and the next start is after them."""
    story, (first, second) = torchrun()
    story.called(first)
    story.ends(1)
    story.until(300)
    assert story.pid == 100
    assert not story.killed
    story.commits(first)
    story.commits(second)
    story.closes(first)
    story.closes(second)
    story.until(330)
    assert story.pid == 101
    assert story.outcomes[0].step == 7


def test_a_launchers_leftovers_are_not_waited_for_after_their_commit() -> None:
    """A worker that stands in a collective hears nothing: neither `Leave`, nor a handler of SIGTERM."""
    story, sessions = torchrun()
    story.called(sessions[0])
    story.ends(1)
    story.until(300)
    for session in sessions:
        story.commits(session)
    assert [number for number, _ in story.sent(Leave)] == sessions
    story.until(314)
    assert not story.killed
    story.until(315)
    assert story.killed
    assert story.pid == 101


# --- this machine, too ---


def test_a_notice_of_this_machine_takes_over() -> None:
    """Its deadline counts, its name is told anew, and `run` exits 75 as always."""
    story, (first, second) = torchrun(outlive=False)
    story.called(first)
    story.commits(first)
    story.notice(60)
    assert [(n, said.id, said.kind) for n, said in story.sent(Preempt)[2:]] == [(second, "n1", "terminate")]
    assert len(story.all(Announce)) == 1
    story.says(second, Committed("x", 7, 1, 0.1, "u", story.now))
    assert terms(story) == [TERM]
    story.closes(first)
    story.closes(second)
    story.ends(-15)
    assert story.code == 75
    (outcome,) = story.outcomes
    assert (outcome.kind, outcome.id, outcome.also) == ("terminate", "n1", ("x",))
    assert outcome.slack == 60.0


def test_a_call_after_a_notice_of_this_machine_changes_nothing() -> None:
    """Both go. What is answered under the call's name counts."""
    story, (first, second) = torchrun()
    story.notice(60)
    story.called(first)
    assert len(story.sent(Preempt)) == 2
    for session in (first, second):
        story.says(session, Committed("x", 7, 1, 0.1, "u", story.now))
        story.closes(session)
    story.ends(-15)
    assert story.code == 75
    assert story.outcomes[0].also == ("x",)


def test_two_machines_that_were_told_with_equal_ids_are_two() -> None:
    """AWS makes ids of nothing but a time: this machine's own notice of that name is no repetition."""
    story, (first, _) = torchrun()
    story.called(first, "n1")
    story.notice(60, id="n1")
    assert story.machine.preemption is not None
    assert story.machine.preemption.deadline == story.now + 60
    assert story.sent(Preempt)[-1][1].kind == "terminate"


def test_when_this_machines_own_notice_is_withdrawn_the_call_still_stands() -> None:
    """The other machine goes all the same, and this one starts again without it."""
    story, sessions = torchrun()
    story.called(sessions[0])
    story.notice(60)
    story.gone("n1")
    for session in sessions:
        story.commits(session)
        story.closes(session)
    story.ends(-15)
    assert (story.pid, story.code) == (101, None)


# --- calls that come to nothing ---


def test_a_withdrawn_call_ends_nothing() -> None:
    """Everybody goes on training; who is late with the call does not begin it again."""
    story, (first, second) = torchrun()
    story.called(first)
    story.uncalled(first)
    assert [n for n, _ in story.sent(Withdrawn)] == [first, second]
    story.called(second)
    story.uncalled(second)
    assert len(story.sent(Preempt)) == 2
    assert story.machine.preemption is None
    assert not terms(story)
    story.called(first)  # and who knew it void calls anew
    assert story.machine.preemption is not None


def test_a_call_that_is_withdrawn_after_the_commit_is_too_late() -> None:
    """The command is on its way out: it is started again."""
    story, sessions = torchrun()
    story.called(sessions[0])
    for session in sessions:
        story.commits(session)
    story.uncalled(sessions[0])
    assert not story.sent(Withdrawn)
    for session in sessions:
        story.closes(session)
    story.ends(-15)
    assert story.pid == 101


def test_a_drill_on_another_machine_is_a_drill_here() -> None:
    """All save, and all go on."""
    story, sessions = torchrun()
    story.called(sessions[0], drill=True)
    assert {said.drill for _, said in story.sent(Preempt)} == {True}
    for session in sessions:
        story.commits(session)
    assert [n for n, _ in story.sent(Resume)] == sessions
    assert not terms(story)
    assert story.machine.preemption is None
    (outcome,) = story.outcomes
    assert outcome.drill
    assert "another machine's drill" in outcome.line()


def test_a_real_call_breaks_off_a_drill() -> None:
    """A rehearsal is never in the way."""
    story, (first, _) = torchrun()
    story.asks()
    story.called(first)
    assert [outcome.drill for outcome in story.outcomes] == [True]
    assert story.sent(Preempt)[-1][1].kind == "peer"


# --- as a service ---


def test_a_service_tells_the_ranks_of_that_run_and_nobody_else() -> None:
    """It relays, and starts nothing: each run has a launcher of its own. Who comes later has nothing to fear."""
    story = Story(command=False)
    first, second = story.opens(501, run="gpt"), story.opens(502, run="gpt")
    other = story.opens(600, run="other")
    story.called(first)
    assert [n for n, _ in story.sent(Preempt)] == [first, second]
    assert not story.machine.departing
    story.commits(first)
    story.commits(second)
    assert [n for n, _ in story.sent(Leave)] == [first, second]
    assert story.machine.preemption is None
    assert [outcome.kind for outcome in story.outcomes] == ["peer"]
    story.opens(700, run="gpt")
    assert len(story.sent(Preempt)) == 2
    assert other in story.machine.sessions


def test_two_runs_of_a_service_may_be_called_at_once() -> None:
    """Each leaves when its own ranks have answered."""
    story = Story(command=False)
    first, other = story.opens(501, run="gpt"), story.opens(600, run="other")
    story.called(first, "x")
    story.called(other, "y")
    assert [n for n, _ in story.sent(Preempt)] == [first, other]
    story.says(other, Committed("y", 3, 1, 0.1, "u", story.now))
    assert [n for n, _ in story.sent(Leave)] == [other]
    story.says(first, Committed("x", 7, 1, 0.1, "u", story.now))
    assert [n for n, _ in story.sent(Leave)] == [other, first]


def test_the_log_says_that_this_machine_stays() -> None:
    """No seconds are said to be left where nothing ends."""
    story, sessions = torchrun()
    story.called(sessions[0])
    for session in sessions:
        story.commits(session)
        story.closes(session)
    story.ends(-15)
    lines = [log.text for log in story.all(Log)]
    assert (
        "another machine of this job was noticed: terminate: rack 7 from aws spot/instance-action, "
        "118.0 s left there, notifying 2 training process(es)"
    ) in lines
    assert "starting the command again: another machine of the job was noticed, this one stays" in lines
    assert not any("s left" in line for line in lines[2:])
