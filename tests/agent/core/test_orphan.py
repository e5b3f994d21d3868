"""What a killed agent left here saves and ends before the command is started, as told to the pure machine."""

from __future__ import annotations

import signal

import pytest

from spotguard.agent.actions import Announce, Launch, Log, SignalGroup
from spotguard.hooks.ipc.protocol import Leave, Preempt
from spotguard.providers.notice import NoticeKind
from tests.agent.core.telling import only
from tests.fakes.story import Story

TERM, KILL = signal.SIGTERM, signal.SIGKILL


def left(pid: int = 100, **policy: object) -> Story:
    story = Story(age=0, orphan=pid, **policy)
    assert not story.all(Launch), "two would train under one run id"
    return story


def test_training_that_comes_back_saves_and_leaves_and_then_the_command_is_started() -> None:
    """Its newest state is committed, nobody counts a crash, and no operator is told that the machine goes."""
    story = left()
    session = story.opens(pid=100)
    ((number, told),) = story.sent(Preempt)
    assert (number, told.kind, told.drill, told.seconds_left) == (session, "orphan", False, 120.0)
    assert "pid 100 is left of a spotguard run that was killed" in story.all(Log)[0].text
    story.commits(session)
    assert [leave for _, leave in story.sent(Leave)] == [Leave(told.id, 75)]
    assert not story.all(Launch)
    story.ends(0)
    assert len(story.all(Launch)) == 1
    assert (story.pid, story.code, story.machine.restarts, only(story.signals)) == (101, None, 0, [])
    assert not story.all(Announce)
    (outcome,) = story.outcomes
    assert (outcome.kind, outcome.step, outcome.ended) == (NoticeKind.ORPHAN, 7, "left when asked")
    assert (outcome.returncode, outcome.code, outcome.failed) == (None, None, False)
    story.ends(3)
    assert story.code == 3


def test_a_command_of_which_nobody_comes_back_gets_the_signal_and_is_killed_in_the_end() -> None:
    """What is never registered, or deaf, must not train beside the next one for ever."""
    story = left()
    story.until(4.9)
    assert only(story.signals) == []
    story.until(5)
    assert only(story.signals) == [TERM]
    story.until(119)
    assert not story.killed
    story.until(120)
    assert story.killed
    assert not story.all(Launch)
    story.ends(0)
    assert len(story.all(Launch)) == 1
    assert story.outcomes[0].failed, "its code is not known"


def test_the_ranks_of_a_launcher_all_have_time_to_come_back() -> None:
    """The first commit ends nothing; after the last the launcher is ended, and not a worker before it."""
    story = left()
    first = story.opens(501, rank=0, world=2)
    story.commits(first)
    story.until(3)
    second = story.opens(502, rank=1, world=2)
    story.commits(second)
    assert only(story.signals) == []
    story.until(5)
    assert only(story.signals) == [TERM]
    assert not story.sent(Leave)
    story.closes(first)
    story.closes(second)
    story.ends(0)
    assert len(story.all(Launch)) == 1


def test_workers_whose_launcher_is_gone_too_save_and_leave() -> None:
    """No signal to a group that may be a stranger's by now."""
    story = left(pid=0)
    story.ends(0)
    worker = story.opens(501)
    story.until(5)
    assert not story.all(Launch)
    story.commits(worker)
    assert [number for number, _ in story.sent(Leave)] == [worker]
    assert not story.all(Launch)
    story.closes(worker)
    story.until(6)
    assert len(story.all(Launch)) == 1


def test_leavings_that_never_trained_are_not_waited_for_longer_than_for_their_return() -> None:
    """A tracker's or a dashboard's server that the script had started: it stays."""
    story = left(pid=0)
    story.ends(0)
    story.until(4.9)
    assert not story.all(Launch)
    story.until(6)
    assert len(story.all(Launch)) == 1
    assert story.signalled_sessions == []
    assert only(story.signals) == []
    assert story.outcomes == [], "nothing was there to be saved"


@pytest.mark.parametrize("registered", [True, False])
def test_a_machine_that_goes_meanwhile_starts_nothing(registered: bool) -> None:
    """The cloud's notice is the one in hand from then on, with its own deadline."""
    story = left()
    session = story.opens(pid=100) if registered else 0
    story.notice(left=30.0, window=30.0)
    if registered:
        assert story.sent(Preempt)[-1][1].seconds_left == pytest.approx(30.0)
        story.commits(session)
    story.until(10)
    story.ends(0)
    story.until(200)
    assert story.code == 75
    assert not story.all(Launch)
    assert (story.outcomes[0].kind, story.outcomes[0].code) == (NoticeKind.TERMINATE, 75)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_an_agent_that_is_told_to_end_meanwhile_starts_nothing(signum: int) -> None:
    story = left()
    story.opens(pid=100)
    story.signal(signum)
    story.until(1)
    story.ends(0)
    story.until(60)
    assert story.code == 75
    assert not story.all(Launch)


def test_one_that_is_stopped_is_woken_to_save() -> None:
    """Ctrl-Z, before the agent was killed."""
    assert left().all(SignalGroup) == [SignalGroup(signal.SIGCONT)]
