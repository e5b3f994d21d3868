"""Signals, drills and the service, told as stories to the pure machine."""

from __future__ import annotations

import logging
import signal

import pytest

from spotguard.agent.actions import Log, SignalGroup
from spotguard.agent.events import CommandEnded, Signalled
from spotguard.hooks.ipc.protocol import SIGNAL, Delivered, Leave, Preempt, Resume, Withdrawn
from tests.agent.core.telling import only
from tests.fakes.story import Story

TERM, INT = signal.SIGTERM, signal.SIGINT


# --- signals to spotguard ---


def test_sigterm_is_a_notice_of_25_seconds() -> None:
    """Whoever stops `spotguard run` gets a checkpoint, and 75."""
    story = Story()
    session = story.opens()
    story.signal(TERM)
    assert story.sent(Preempt)[0][1].seconds_left == 25.0
    assert only(story.signals) == []
    story.commits(session)
    story.ends(75)
    assert story.code == 75
    assert story.outcomes[0].kind == "signal"


def test_sigterm_has_the_window_that_was_said() -> None:
    """`--window` beats the 25 s."""
    story = Story(window=90.0)
    story.opens()
    story.signal(TERM)
    assert story.sent(Preempt)[0][1].seconds_left == 90.0


def test_a_second_sigterm_ends_at_once() -> None:
    """TERM to the group, SIGKILL after 5 s, whatever the save does."""
    story = Story()
    story.opens()
    story.signal(TERM)
    story.until(2)
    story.signal(TERM)
    assert only(story.signals) == [TERM]
    story.until(6.9)
    assert not story.killed
    story.until(7)
    assert story.killed
    story.ends(-9)
    assert story.code == 75
    assert [outcome.ended for outcome in story.outcomes] == ["ended at once by SIGTERM, then killed"]


def test_a_sigterm_that_is_said_twice_in_a_row_is_one() -> None:
    """Slurm does so at a preemption and at a time limit: the save has its window, and a later one still means haste."""
    story = Story(window=90.0)
    session = story.opens()
    story.signal(TERM)
    story.until(0.1)
    story.signal(TERM)
    assert only(story.signals) == []
    assert len(story.sent(Preempt)) == 1
    story.until(30)
    story.commits(session)
    story.ends(75)
    assert [outcome.ended for outcome in story.outcomes] == ["left when asked"]
    hasty = Story()
    hasty.opens()
    for after in (0, 0.1, 1.9):
        hasty.until(after)
        hasty.signal(TERM)
    assert only(hasty.signals) == []
    hasty.signal(INT)
    assert only(hasty.signals) == [INT], "Ctrl-C never waits"


def test_ctrl_c_while_it_leaves_is_not_followed_by_term() -> None:
    """The command has got what the person pressed; five seconds later it is killed."""
    story = Story()
    session = story.opens()
    story.notice()
    story.commits(session)
    story.until(7)
    story.signal(INT)
    story.until(11.9)
    assert only(story.signals) == [INT]
    story.until(12)
    assert story.killed


def test_a_third_kills_now() -> None:
    """Whoever asks three times means it."""
    story = Story()
    story.signal(INT)
    story.signal(INT)
    assert story.killed


def test_sigint_without_a_notice_gives_the_commands_own_code() -> None:
    """Ctrl-C is no preemption."""
    story = Story(max_restarts=3)
    story.opens()
    story.signal(INT)
    assert only(story.signals) == [INT]
    story.ends(-2)
    assert story.code == 130
    assert not story.outcomes
    assert story.pid == 100


@pytest.mark.parametrize(
    "signum", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGQUIT]
)
def test_other_signals_are_passed_on(signum: int) -> None:
    """They mean something to the command alone."""
    story = Story()
    story.signal(signum)
    assert story.signals == [signum]
    assert story.code is None


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGHUP])
def test_a_signal_before_an_end_is_passed_on_with_the_training_processes_that_it_must_not_end(
    signum: int,
) -> None:
    story = Story()
    story.opens()
    story.signal(signum)
    assert story.all(SignalGroup)[-1].trained == {story.pid}


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU, signal.SIGHUP])
def test_a_signal_before_an_end_that_the_command_does_not_handle_is_a_notice(signum: signal.Signals) -> None:
    """Slurm, submitit, LSF and Grid Engine send the first three before a limit, and a closed ssh session the last."""
    story = Story()
    session = story.opens()
    story.on(Signalled(signum, unhandled=True))
    assert story.sent(Preempt)[0][1].seconds_left == 25.0
    assert only(story.signals) == []
    story.commits(session)
    story.ends(75)
    assert (story.code, story.outcomes[0].source) == (75, signum.name)


# --- signals that a terminal sends to the command alone ---


def holds(story: Story, session: int, name: str) -> None:
    story.says(session, Delivered(name, story.now, SIGNAL, name))


@pytest.mark.parametrize("ended", [75, -signal.SIGTERM, 1])
def test_a_ctrl_c_that_training_holds_is_a_save_and_an_end_by_hand(ended: int) -> None:
    """A shell's loop over 75 must not go on, and nothing starts again: a loader's worker died of the Ctrl-C, and training of that."""
    story = Story(max_restarts=3, outlive=True)
    first, second = story.opens(), story.opens(pid=101, rank=1)
    holds(story, first, "SIGINT")
    holds(story, second, "SIGINT")
    assert [told.seconds_left for _, told in story.sent(Preempt)] == [25.0, 25.0], "each rank says it"
    (said,) = [log.text for log in story.all(Log) if "second Ctrl-C" in log.text]
    assert "saved first, in 25 s at most" in said
    assert only(story.signals) == []
    story.notice(20)
    story.commits(first)
    story.commits(second)
    story.closes(second)
    story.ends(ended)
    story.until(30)
    assert (story.code, story.pid) == (128 + INT, 100)
    assert [outcome.source for outcome in story.outcomes] == ["SIGINT"]


def test_a_ctrl_c_that_run_gets_too_kills_no_save() -> None:
    """In a pipe it goes to both. The command gets it from `run`, and holds it; a second one ends it at once."""
    story = Story()
    session = story.opens()
    story.signal(INT)
    holds(story, session, "SIGINT")
    said = [log.level for log in story.all(Log) if "saves first" in log.text or "saved first" in log.text]
    assert said == [logging.INFO, logging.DEBUG], "one line"
    story.signal(INT)  # from a sender that signals all processes
    assert only(story.signals) == [INT]
    story.until(20)
    assert not story.killed
    story.signal(INT)
    assert only(story.signals) == [INT, INT]
    story.ends(-INT)
    assert story.code == 130
    assert [outcome.ended for outcome in story.outcomes] == ["ended at once by SIGINT"]


def test_a_hang_up_that_ends_a_launcher_does_not_end_its_training() -> None:
    """A terminal that goes ends a shell around training; training holds the signal, and has its seconds."""
    story = Story()
    worker = story.opens(pid=101)
    story.ends(-signal.SIGHUP)
    holds(story, worker, "SIGHUP")
    assert story.sent(Preempt)[0][1].seconds_left == 25.0
    story.until(20)
    assert not story.killed
    story.commits(worker)
    story.closes(worker)
    story.until(30)
    assert story.code == 75
    assert story.outcomes[0].committed is not None


def test_a_sigint_of_ranks_whose_launcher_has_crashed_is_no_ctrl_c() -> None:
    """`torch.multiprocessing.spawn` has each rank get SIGINT at its own end. The command starts again as at any crash."""
    story = Story(max_restarts=1)
    worker = story.opens(pid=101)
    story.ends(-signal.SIGKILL)
    holds(story, worker, "SIGINT")
    assert not story.sent(Preempt)
    story.closes(worker)
    story.until(60)
    assert (story.pid, story.code) == (101, None)


def test_a_held_signal_that_no_save_can_follow_changes_nothing() -> None:
    story = Story(command=False)
    session = story.opens()
    for name in ("SIGINT", "SIGHUP", "SIGSEGV"):
        holds(story, session, name)
    assert (story.sent(Preempt), story.code) == ([], None)


def test_the_machines_own_shutdown_joins_the_clouds_notice() -> None:
    """The operating system's SIGTERM comes inside the window: the shorter of both counts, and nothing is cut."""
    story = Story()
    session = story.opens()
    story.notice(120)
    story.until(10)
    story.signal(TERM)
    assert [p.seconds_left for _, p in story.sent(Preempt)] == [120.0, 25.0]
    assert only(story.signals) == []
    story.commits(session)
    story.ends(75)
    assert story.outcomes[0].also


def test_the_clouds_notice_after_a_sigterm_moves_no_deadline_away() -> None:
    """Kubernetes: the kubelet of a node that goes gives a pod less time than the machine has."""
    story = Story(window=12.0)
    session = story.opens()
    story.signal(TERM)
    story.until(1)
    story.notice(30)
    assert [p.seconds_left for _, p in story.sent(Preempt)] == [12.0]
    story.until(5)
    story.commits(session)
    story.ends(75)
    assert story.outcomes[0].slack == pytest.approx(7.0, abs=0.1)


# --- drills ---


def test_a_drill_saves_and_goes_on() -> None:
    """Everybody is told, everybody resumes, nothing is signalled, and who asked sees the outcome."""
    story = Story()
    session = story.opens()
    story.asks(window=30)
    ((_, preempt),) = story.sent(Preempt)
    assert preempt.drill
    assert preempt.seconds_left == 30.0
    story.commits(session)
    assert [number for number, _ in story.sent(Resume)] == [session]
    assert story.signals == []
    assert story.code is None
    assert story.tells[-1].last
    assert story.tells[-1].body["outcome"]["committed"] is not None
    (outcome,) = story.outcomes
    assert outcome.drill
    story.ends(0)
    assert story.code == 0


def test_a_drill_that_is_too_slow_goes_on_too() -> None:
    """Out of time is a finding, not an end."""
    story = Story()
    session = story.opens()
    story.asks(window=30)
    story.until(27)
    assert [number for number, _ in story.sent(Resume)] == [session]
    assert not story.killed
    assert story.outcomes[0].committed is None


def test_a_drill_with_nobody_there_says_so() -> None:
    """It would prove nothing."""
    story = Story()
    story.asks()
    assert story.tells[0].last
    assert "no training process" in story.tells[0].body["error"]
    assert not story.outcomes


def test_a_drill_during_a_notice_is_refused() -> None:
    """It would disturb the save."""
    story = Story()
    story.opens()
    story.notice()
    story.asks()
    assert "error" in story.tells[0].body
    assert len(story.sent(Preempt)) == 1


def test_a_real_notice_breaks_a_drill_off() -> None:
    """Two outcomes, and the real one is told as such."""
    story = Story()
    session = story.opens()
    story.asks()
    story.notice()
    assert [p.drill for _, p in story.sent(Preempt)] == [True, False]
    assert story.tells[-1].last
    story.commits(session)
    story.ends(75)
    assert [o.drill for o in story.outcomes] == [True, False]
    assert story.code == 75


def test_a_drill_with_preempt_goes_to_the_end() -> None:
    """As a notice: 75."""
    story = Story()
    session = story.opens()
    story.asks(preempt=True)
    assert not story.sent(Preempt)[0][1].drill
    story.commits(session)
    assert story.sent(Leave)
    story.ends(75)
    assert story.code == 75
    assert story.tells[-1].last
    assert story.outcomes[0].drill


def test_a_command_that_ends_during_a_drill_keeps_its_code() -> None:
    """A drill excuses no crash."""
    story = Story()
    story.opens()
    story.asks()
    story.ends(1)
    assert story.code == 1
    assert len(story.outcomes) == 1


# --- as a service ---


def service() -> Story:
    return Story(command=False)


def test_a_service_tells_everybody_and_kills_nobody() -> None:
    """Each job leaves when its own ranks are done, whatever the others do."""
    story = service()
    a0, a1 = story.opens(11, uid=1, run="a"), story.opens(12, uid=1, run="a")
    b = story.opens(21, uid=2, run="b")
    story.notice()
    assert sorted(number for number, _ in story.sent(Preempt)) == [a0, a1, b]
    story.commits(b)
    assert [number for number, _ in story.sent(Leave)] == [b]
    story.commits(a0)
    story.fails(a1)
    assert sorted(number for number, _ in story.sent(Leave)) == [a0, a1, b]
    assert len(story.outcomes) == 1
    story.until(300)
    assert not story.signals
    assert not story.killed
    assert story.code is None


def test_a_service_says_how_it_ended_at_the_deadline() -> None:
    """A silent session is named in the outcome; when the machine outlives the notice, it may go on."""
    story = service()
    session = story.opens(11)
    story.notice()
    story.until(120)
    assert [o.ended for o in story.outcomes] == ["the deadline came"]
    assert not story.sent(Withdrawn)
    story.until(180)
    assert [number for number, _ in story.sent(Withdrawn)] == [session]
    assert story.notice(0) == []


def test_a_service_waits_for_the_clouds_own_deadline() -> None:
    """With `--window` too: nobody is released onto a machine that is about to go."""
    story = Story(command=False, window=30.0)
    session = story.opens(11)
    story.notice(120)
    story.until(179)
    assert not story.sent(Withdrawn)
    story.until(180)
    assert [number for number, _ in story.sent(Withdrawn)] == [session]


def test_a_process_that_registers_after_the_commit_is_told_too() -> None:
    """A process that starts on a doomed machine parks and never trains, until the machine has outlived it."""
    story = service()
    first = story.opens(11)
    story.notice()
    story.commits(first)
    story.until(10)
    late = story.opens(12)
    assert story.sent(Preempt)[-1][0] == late
    story.until(180)
    assert [number for number, _ in story.sent(Withdrawn)] == [late]


def test_a_users_drill_reaches_only_its_own_sessions() -> None:
    """Sessions never see each other."""
    story = service()
    mine, other = story.opens(11, uid=1), story.opens(21, uid=2)
    story.asks(uid=1)
    assert [number for number, _ in story.sent(Preempt)] == [mine]
    story.notice()
    assert sorted(number for number, _ in story.sent(Preempt)[1:]) == [mine, other]


def test_a_user_without_sessions_cannot_drill_those_of_others() -> None:
    """Root can."""
    story = service()
    story.opens(11, uid=1)
    story.asks(uid=2)
    assert "error" in story.tells[0].body
    story.asks(uid=0)
    assert story.sent(Preempt)


def test_a_real_notice_during_a_users_drill_with_preempt_reaches_all() -> None:
    """The drill has become a notice."""
    story = service()
    mine, other = story.opens(11, uid=1), story.opens(21, uid=2)
    story.asks(uid=1, preempt=True)
    story.notice(20)
    assert {number for number, _ in story.sent(Preempt)} == {mine, other}
    assert not story.outcomes


def test_a_service_stops_when_told() -> None:
    """Training goes on unguarded; a notice in hand has its outcome, also where nobody waits for who saves."""
    story = service()
    story.opens(11)
    story.notice()
    story.signal(TERM)
    assert story.code is None
    story.signal(TERM)
    assert story.code == 0
    assert [o.ended for o in story.outcomes] == ["the agent was stopped"]
    assert not story.sent(Withdrawn)


def test_an_event_for_an_unknown_command_changes_nothing() -> None:
    """A pid that is not ours."""
    story = Story()
    assert story.on(CommandEnded(4, 0)) == []
    assert story.code is None
