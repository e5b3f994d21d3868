"""A run that began in vain, on a machine that was going away already, told as stories to the pure machine."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from spotguard.agent.actions import Log, Rest
from spotguard.hooks.ipc.protocol import Leave
from spotguard.providers.notice import NoticeKind
from tests.fakes.story import Story

TERM, INT, HUP, QUIT = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT


def in_vain(left: float = 120.0, **policy: Any) -> Story:
    """The first look finds a notice; the command is told, and ends."""
    story = Story(age=0, **policy)
    story.until(1)
    story.notice(left)
    story.until(2)
    story.ends(-15)
    return story


def test_it_exits_at_the_deadline_and_not_before() -> None:
    """Or a shell's loop would start it again, over and over, until the machine is gone."""
    story = in_vain()
    assert story.code is None
    assert len(story.all(Rest)) == 1, "the keyboard is ours"
    assert story.machine.phase == "waiting"
    (outcome,) = story.outcomes
    assert outcome.code == 75
    (line,) = [log.text for log in story.all(Log) if "waiting" in log.text]
    assert "waiting 119.0 s, until its deadline, before exit code 75" in line
    story.until(120.9)
    assert story.code is None
    story.until(121)
    assert story.code == 75
    assert story.pid == 100


def test_a_training_process_that_parked_and_left_is_one_that_began_in_vain() -> None:
    """It registered after the notice, so it has not trained a step."""
    story = Story(age=0)
    story.notice()
    session = story.opens()
    story.until(5)
    story.fails(session, "training has not begun yet")
    assert story.sent(Leave)
    story.ends(75)
    story.until(119)
    assert story.code is None
    story.until(120)
    assert story.code == 75


def test_the_clouds_own_deadline_is_waited_for() -> None:
    """`--window 30` says when a save must be done, not when the machine goes."""
    story = in_vain(window=30.0)
    story.until(120)
    assert story.code is None
    story.until(121)
    assert story.code == 75


def test_a_notice_that_is_over_is_waited_out_for_the_last_try() -> None:
    """AWS shows it for ten minutes on a machine that was spared: a restart every ten seconds, and no storm."""
    story = in_vain(left=-5)
    story.until(10.9)
    assert story.code is None
    story.until(11)
    assert story.code == 75


def test_withdrawn_it_ends_at_once() -> None:
    """What is started now trains."""
    story = in_vain()
    story.until(20)
    story.gone()
    assert story.code == 75


def test_withdrawn_while_the_command_was_leaving_it_is_not_waited_for() -> None:
    story = Story(age=0)
    story.notice()
    session = story.opens()
    story.fails(session, "training has not begun yet")
    story.gone()
    story.ends(75)
    assert story.code == 75
    assert story.all(Rest) == []


@pytest.mark.parametrize(("signum", "code"), [(TERM, 75), (INT, 130), (HUP, 129), (QUIT, 131)])
@pytest.mark.parametrize("outlive", [False, True])
def test_a_signal_ends_the_wait(signum: int, code: int, outlive: bool) -> None:
    """Ctrl-C by its own code, which a shell's loop understands. Nothing is started and nothing signalled any more."""
    story = in_vain(outlive=outlive)
    before = story.signals
    story.signal(signum)
    assert story.code == code
    assert story.signals == before
    assert story.pid == 100


def test_other_signals_do_not() -> None:
    """They were meant for the command."""
    story = in_vain()
    story.signal(signal.SIGWINCH)
    assert story.code is None


@pytest.mark.parametrize("registered", [True, False])
def test_after_training_the_exit_is_not_held_back(registered: bool) -> None:
    """Whoever runs it again elsewhere should know at once: who was registered may have trained, and so may who ran."""
    story = Story(age=0 if registered else 10.1)
    if registered:
        story.opens()
    story.until(1)
    story.notice()
    if registered:
        story.commits(1)
    story.ends(-15)
    story.until(2)
    assert story.code == 75
    assert story.all(Rest) == []


@pytest.mark.parametrize("how", ["sigterm", "drill", "both", "asked twice"])
def test_no_machine_goes_away_by_a_persons_word(how: str) -> None:
    """And whoever sent SIGTERM waits for the exit."""
    story = Story(age=0)
    if how == "drill":
        story.opens()
        story.asks(preempt=True)
        story.commits(1)
    else:
        if how != "sigterm":
            story.notice()
        story.signal(INT if how == "asked twice" else TERM)
    story.ends(-15)
    story.until(1)
    assert story.code is not None
    assert story.all(Rest) == []


def test_a_command_that_was_done_is_done() -> None:
    story = Story(age=0, signal=None)
    story.notice()
    story.ends(0)
    assert story.code == 0


def test_another_notice_meanwhile_is_waited_out_too() -> None:
    """Until its deadline, and no longer."""
    story = in_vain()
    story.until(100)
    story.notice(120, id="n2", kind=NoticeKind.STOP)
    story.until(219)
    assert story.code is None
    story.until(220)
    assert story.code == 75
    assert [outcome.id for outcome in story.outcomes] == ["n1", "n2"]
