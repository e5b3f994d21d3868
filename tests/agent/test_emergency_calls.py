"""Another machine of the job was noticed: stories of the one that stays, told to the pure machine."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from spotguard.agent.actions import Announce, Launch, Log
from spotguard.hooks.protocol import Bye, Committed, Leave, Preempt, Resume, Withdrawn
from tests.fakes.story import Story

TERM = signal.SIGTERM


def torchrun(*, ranks: int = 2, **policy: Any) -> tuple[Story, list[int]]:
    """A launcher with its workers, which have pids of their own."""
    story = Story(**policy)
    return story, [story.opens(501 + rank, rank=rank, world=2 * ranks) for rank in range(ranks)]


def terms(story: Story) -> list[int]:
    return [signum for signum in story.signals if signum == TERM]


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
        "another machine's notice (terminate: rack 7) from aws spot/instance-action: seen with 118.0 s left"
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


def test_what_a_launcher_left_behind_is_not_waited_for_after_its_commit() -> None:
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


def relaunched(**policy: Any) -> Story:
    story, sessions = torchrun(**policy)
    story.called(sessions[0])
    for session in sessions:
        story.commits(session)
        story.closes(session)
    story.ends(-15)
    assert story.pid == 101
    return story


def test_a_crash_after_the_new_start_is_a_crash() -> None:
    """The relaunch is free; what it makes of it is not."""
    story = relaunched()
    story.closes(story.opens(502))
    story.ends(1)
    assert (story.pid, story.code) == (101, 1)


def test_until_the_others_are_there_it_is_started_again_and_again() -> None:
    """torchrun gives up where nobody answers at its rendezvous; a new machine takes minutes to come up."""
    story = relaunched()
    for again in range(3):
        story.until(100 * again + 100)
        story.ends(1)
        assert (story.machine.phase, story.code) == ("rejoining", None)
        story.until(100 * again + 100.5)
        assert story.pid == 101 + again
        story.until(100 * again + 101)
        assert story.pid == 102 + again
    assert story.machine.restarts == 0
    story.until(600 + 900)  # a Kubernetes Job's longest delay, and a node that boots
    story.ends(1)
    assert story.code is None
    story.until(1800)
    story.ends(1)
    assert story.code == 1


def test_the_new_start_is_told_which_machines_are_gone() -> None:
    """In the order of the calls: the place to meet may be the next that goes. What was withdrawn is not gone."""
    story, (first, second) = torchrun()
    story.called(first, "x", gone="node1 10.0.0.1", meet="node2")
    story.called(second, "x", gone="node1 10.0.0.1", meet="node2")
    story.called(first, "z", gone="node4", meet="node3")
    story.uncalled(first, "z")
    story.called(first, "y", gone="NODE2", meet="node3")
    for session in (first, second):
        story.commits(session)
        story.closes(session)
    story.ends(-15)
    moves = ((frozenset({"node1", "10.0.0.1"}), "node2"), (frozenset({"node2"}), "node3"))
    assert [launch.moves for launch in story.all(Launch)] == [(), moves]
    story.ends(1)
    story.until(1)
    assert story.all(Launch)[-1].moves == ()


def test_while_the_others_are_looked_for_this_machine_may_be_noticed_too() -> None:
    """Nothing is to be saved. It exits with 75 when the machine goes, and starts nothing on it before."""
    story = relaunched()
    story.ends(1)
    story.notice(60)
    story.until(59)
    assert (story.pid, story.code) == (101, None)
    story.until(60)
    assert (story.pid, story.code) == (101, 75)


def test_while_the_others_are_looked_for_a_sigterm_ends_it() -> None:
    story = relaunched()
    story.ends(1)
    story.signal(TERM)
    assert (story.pid, story.code) == (101, 75)


def test_who_ends_it_by_hand_is_obeyed() -> None:
    """Ctrl-C while torchrun looks for the others."""
    story = relaunched()
    story.ends(-signal.SIGINT)
    assert story.code == 130


def test_training_that_ends_by_itself_is_not_started_again() -> None:
    """The last step was the last one: the call came too late for anybody to mind."""
    story, sessions = torchrun()
    story.called(sessions[0])
    for session in sessions:
        story.says(session, Bye())
        story.closes(session)
    story.ends(0)
    assert story.code == 0


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
    assert story.machine.pending is not None
    assert story.machine.pending.deadline == story.now + 60
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
    assert story.machine.pending is None
    assert not terms(story)
    story.called(first)  # and who knew it void calls anew
    assert story.machine.pending is not None


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
    assert story.machine.pending is None
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
    assert not story.machine.doomed
    story.commits(first)
    story.commits(second)
    assert [n for n, _ in story.sent(Leave)] == [first, second]
    assert story.machine.pending is None
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
        "118.0 s left there, telling 2 training process(es)"
    ) in lines
    assert "starting the command again: another machine of the job was noticed, this one stays" in lines
    assert not any("s left" in line for line in lines[2:])
