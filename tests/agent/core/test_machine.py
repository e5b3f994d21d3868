"""How a notice ends, told as stories to the pure machine: what is said, what is signalled, what code comes out."""

from __future__ import annotations

import logging
import signal

import pytest

from spotguard.agent.actions import Launch, Log, Tell
from spotguard.agent.events import Asked
from spotguard.hooks.ipc.protocol import Bye, Leave, Position, Preempt
from spotguard.providers.notice import NoticeKind
from tests.agent.core.telling import only
from tests.fakes.story import Story

TERM, KILL = signal.SIGTERM, signal.SIGKILL


# --- without a notice ---


@pytest.mark.parametrize(("returncode", "code"), [(0, 0), (3, 3), (-9, 137), (-15, 143), (75, 75)])
def test_without_a_notice_the_code_is_the_commands_own(returncode: int, code: int) -> None:
    """128+n when a signal killed it, as a shell says it."""
    story = Story()
    story.ends(returncode)
    assert story.code == code
    assert not story.outcomes
    assert not story.signals


def test_a_crash_is_started_again_as_often_as_said() -> None:
    """`--max-restarts` counts crashes, and the last one's code is ours."""
    story = Story(max_restarts=2)
    for _ in range(2):
        story.ends(1)
        story.pause()
        assert story.code is None
    story.ends(1)
    assert story.code == 1
    assert story.pid == 102


@pytest.mark.parametrize("returncode", [-2, 130, -1, -3])
def test_a_command_that_a_person_ended_is_not_started_again(returncode: int) -> None:
    """Ctrl-C goes to the command's group alone: its end is no crash."""
    story = Story(max_restarts=5)
    story.ends(returncode)
    assert story.code is not None
    assert story.pid == 100


def test_the_position_of_training_is_logged_once_restored() -> None:
    """Who starts a job again sees at once whether it goes on, and from which run and store."""
    story = Story()
    session = story.opens(run="gpt")
    for step in (-1, 2810, 2950):
        story.says(session, Position(step))
    callback = story.opens(store="")
    story.says(callback, Position(-1, mode="callback"))
    (line,) = [log.text for log in story.all(Log) if "training" in log.text]
    assert line == "rank 0 (pid 100): training continues at step 2810 of run gpt in file:///s"


def test_the_first_attempt_of_unproven_code_is_logged_as_such() -> None:
    never, begins = "never proven to resume exactly", "training begins at step 0 of run run in file:///s"
    for proof, attempt, rank, end in (
        (never, 1, 0, f"; {never}: type spotguard prove -- COMMAND"),
        (never, 2, 0, ""),
        (never, 1, 1, ""),
        ("EXACT over 50 steps", 1, 0, ""),
        ("", 1, 0, ""),
    ):
        story = Story()
        story.says(story.opens(proof=proof, rank=rank, world=2), Position(0, attempt=attempt))
        (line,) = [log.text for log in story.all(Log) if "training" in log.text]
        assert line == f"rank {rank} (pid 100): {begins}{end}"


# --- one training process, our own child ---


def test_a_commit_of_our_own_child_ends_with_leave() -> None:
    """Notice, commit, Leave, exit 75: no signal but the one that wakes a stopped command, and no kill."""
    story = Story()
    session = story.opens()
    story.notice()
    ((number, preempt),) = story.sent(Preempt)
    assert (number, preempt.seconds_left, preempt.reserve, preempt.drill) == (session, 120.0, 12.0, False)
    assert not story.sent(Leave)
    story.until(5)
    story.commits(session)
    assert story.sent(Leave) == [(session, Leave("n1", 75))]
    story.ends(75)
    story.until(10)
    assert story.code == 75
    assert only(story.signals) == []
    assert not story.killed
    (outcome,) = story.outcomes
    assert (outcome.step, outcome.committed, outcome.code, outcome.ended) == (7, 5.0, 75, "left when asked")
    assert outcome.slack == 115.0


def test_a_child_that_does_not_leave_gets_term_and_then_kill_at_the_reserve() -> None:
    """A main thread that never comes back is ended after the commit, and killed when the reserve begins."""
    story = Story()
    session = story.opens()
    story.notice()
    story.commits(session)
    story.until(9.9)
    assert only(story.signals) == []
    story.until(20)
    assert only(story.signals) == [TERM]
    assert not story.killed
    story.until(108)
    assert story.killed
    assert story.code is None
    story.ends(-9)
    assert story.code == 75
    assert story.outcomes[0].committed is not None
    assert story.outcomes[0].ended == "asked to leave, then TERM, then killed at the reserve"


@pytest.mark.parametrize(
    ("kind", "level"), [(NoticeKind.TERMINATE, logging.INFO), (NoticeKind.RESTART, logging.DEBUG)]
)
def test_a_child_that_does_not_leave_is_told_of_only_where_time_is_short(
    kind: NoticeKind, level: int
) -> None:
    story = Story()
    session = story.opens()
    story.notice(kind=kind)
    story.commits(session)
    story.until(20)
    assert only(story.signals) == [TERM]
    said = "the command did not leave when asked: SIGTERM"
    assert [each.level for _, each in story.log if isinstance(each, Log) and each.text == said] == [level]


def test_a_short_window_halves_the_time_to_leave() -> None:
    """What is left goes in equal parts to `Leave` and to TERM."""
    story = Story()
    session = story.opens()
    story.notice(12, window=12)
    story.commits(session)
    story.until(4.4)
    assert only(story.signals) == []
    story.until(4.5)
    assert only(story.signals) == [TERM]


@pytest.mark.parametrize("store", ["file:///s", ""])
def test_exit_handlers_are_not_hurried(store: str) -> None:
    """Goodbye is said by an exit handler, and others run after it: no TERM for having said it."""
    story = Story()
    session = story.opens(store=store)
    story.notice()
    story.commits(session)
    before = only(story.signals)
    story.says(session, Bye())
    story.closes(session, alive=True)
    story.until(9)
    assert only(story.signals) == before
    story.ends(75)
    assert story.outcomes[0].ended == ("left when asked" if store else "TERM after the commit")


def test_a_function_of_on_notice_cannot_leave_and_gets_term() -> None:
    """A client without a store ignores Leave, so no time is lost with one."""
    story = Story()
    session = story.opens(store="")
    story.notice()
    story.commits(session, step=-1)
    assert not story.sent(Leave)
    assert only(story.signals) == [TERM]


def test_a_session_with_its_own_save_function_is_given_no_step() -> None:
    """In the log and to who rehearses: we do not know where its training stands."""
    story = Story()
    session = story.opens(store="")
    story.on(Asked(90, uid=1000, window=30.0, preempt=False))
    story.commits(session, step=-1)
    said = [action.text for _, action in story.log if isinstance(action, Log)]
    told = [str(action.body.get("text")) for _, action in story.log if isinstance(action, Tell)]
    assert "rank 0 (pid 100): saved by a function of its own" in told
    assert any("saved by a function of its own; " in line for line in said)
    assert not any("step -1" in line for line in (*said, *told))


def test_a_term_that_woke_nobody_is_said_again_half_way_to_the_reserve() -> None:
    """Once, to the process itself and not to its group: a main thread that waits has not run its handler."""
    story = Story()
    session = story.opens(store="")
    story.notice()
    story.until(8)
    story.commits(session, step=-1)
    story.until(57.9)
    assert story.signalled_sessions == []
    story.until(58)
    assert story.signalled_sessions == [(session, TERM)]
    story.until(107)
    assert story.signalled_sessions == [(session, TERM)]
    assert only(story.signals) == [TERM]
    assert not story.killed


def test_a_term_after_a_leave_is_said_again_too() -> None:
    """The same main thread may have been told to leave before."""
    story = Story()
    session = story.opens()
    story.notice()
    story.commits(session)
    story.until(107)
    assert only(story.signals) == [TERM]
    assert story.signalled_sessions == [(session, TERM)]


def test_term_is_not_said_again_to_who_is_on_its_way_or_has_not_answered() -> None:
    """Exit handlers are at work; and a process that came meanwhile may be about to save (law 11)."""
    story = Story()
    leaving, late = story.opens(201, store=""), 0
    story.notice()
    story.commits(leaving, step=-1)
    story.says(leaving, Bye())
    late = story.opens(202)
    story.until(100)
    assert only(story.signals) == [TERM]
    assert story.signalled_sessions == []
    story.until(108)
    assert story.signalled_sessions == [(leaving, KILL), (late, KILL)]


def test_an_unregistered_command_gets_one_term_only() -> None:
    """Its handler may be saving, and a second one may mean haste to it."""
    story = Story()
    story.notice()
    story.until(107)
    assert only(story.signals) == [TERM]
    assert story.signalled_sessions == []


def test_failing_ends_the_command_too() -> None:
    """Who says that it will not commit is not waited for; the outcome says why."""
    story = Story()
    session = story.opens()
    story.notice()
    story.fails(session, "the store refuses us")
    story.ends(1)
    assert story.code == 75
    assert story.outcomes[0].committed is None
    assert story.outcomes[0].why == "the store refuses us"


def test_silence_is_killed_at_the_reserve_and_not_before() -> None:
    """Whatever a session does not say, the machine's end does not wait."""
    story = Story()
    session = story.opens()
    story.notice()
    story.told(session)
    story.until(107.9)
    assert not story.killed
    assert only(story.signals) == []
    story.until(108)
    assert story.killed
    story.ends(-9)
    assert story.outcomes[0].ended == "killed at the reserve"
    assert "no commit" in story.outcomes[0].why


def test_a_process_that_dies_before_its_commit_has_failed() -> None:
    """Nothing is waited for that cannot come."""
    story = Story()
    story.opens()
    story.notice()
    story.ends(-11)
    story.until(1)
    assert story.code == 75
    assert story.outcomes[0].why == "its process died before the commit"


def test_a_death_that_the_socket_shows_first_is_a_death() -> None:
    """Sockets close in mid-exit, when the process still seems to live; its own end then says what it was."""
    story = Story()
    session = story.opens()
    story.notice()
    story.closes(session, alive=True)
    assert story.outcomes == []
    story.ends(-9)
    story.until(1)
    assert story.outcomes[0].why == "its process died before the commit"


def test_last_words_that_come_after_the_end_still_count() -> None:
    """The kernel tells of the end before the socket's last bytes are read."""
    story = Story()
    session = story.opens()
    story.notice()
    from spotguard.agent.events import CommandEnded

    story.on(CommandEnded(100, 75))
    assert story.code is None
    story.commits(session)
    story.closes(session)
    assert story.code == 75
    assert story.outcomes[0].committed is not None


def test_ending_by_itself_with_0_during_a_notice_stays_0() -> None:
    """Training that was complete is complete; nobody had asked it to go."""
    story = Story()
    session = story.opens()
    story.notice()
    story.says(session, Bye("done"))
    assert only(story.signals) == []
    story.ends(0)
    assert story.code == 0
    assert story.outcomes[0].ended == "ended by itself"


@pytest.mark.parametrize("before", [True, False])
def test_a_session_that_said_goodbye_and_works_on_gets_the_signal(before: bool) -> None:
    """An evaluation after the training: a moment to end by itself, then TERM, and SIGKILL when time is up."""
    story = Story()
    session = story.opens()
    if before:
        story.says(session, Bye("done"))
    story.notice()
    if not before:
        story.says(session, Bye("done"))
    story.closes(session, alive=True)
    story.until(1.9)
    assert only(story.signals) == []
    story.until(107)
    assert only(story.signals) == [TERM]
    assert not story.killed
    story.until(108)
    assert story.killed


def test_a_session_that_said_goodbye_is_left_alone_without_a_signal() -> None:
    """`--signal none`: until the reserve."""
    story = Story(signal=None)
    session = story.opens()
    story.notice()
    story.says(session, Bye("done"))
    story.until(107)
    assert only(story.signals) == []
    story.until(108)
    assert story.killed


def test_0_after_a_term_is_not_success() -> None:
    """A TERM handler that exits with 0 looks like finished work to every launcher (Lightning#21623)."""
    story = Story()
    story.notice()
    assert only(story.signals) == [TERM]
    story.ends(0)
    assert story.code == 75


def test_a_command_whose_checkpoints_are_all_damaged_is_not_started_again() -> None:
    """Exit code 78: the next start would find the same."""
    story = Story(max_restarts=3)
    story.ends(78)
    story.until(5)
    assert story.code == 78
    assert len(story.all(Launch)) == 1
