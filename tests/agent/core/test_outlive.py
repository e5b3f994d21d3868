"""`--outlive`: a machine that is still there after its deadline, told as stories to the pure machine."""

from __future__ import annotations

import signal
from typing import Any

from spotguard.hooks.ipc.protocol import Preempt
from tests.fakes.story import Story

TERM = signal.SIGTERM


def preempted(**policy: Any) -> Story:
    story = Story(outlive=True, **policy)
    session = story.opens()
    story.notice(120)
    story.commits(session)
    story.ends(75)
    return story


def test_outlive_starts_again_60_seconds_after_the_deadline() -> None:
    """The machine is still here: nobody took it."""
    story = preempted()
    story.until(179)
    assert story.code is None
    assert story.pid == 100
    story.until(180)
    assert story.pid == 101


def test_a_window_that_was_cut_short_does_not_make_the_machine_go_earlier() -> None:
    """`--window 30` says when the save must be done; the machine is there until the cloud's own deadline."""
    story = preempted(window=30.0)
    story.until(179)
    assert story.pid == 100
    story.until(180)
    assert story.pid == 101


def test_a_drill_before_the_notice_does_not_make_the_machine_go_earlier() -> None:
    """The drill's deadline is the earlier one, and holds for the save alone."""
    story = Story(outlive=True)
    session = story.opens()
    story.asks(window=20, preempt=True)
    story.notice(120)
    story.commits(session)
    story.ends(75)
    story.until(179)
    assert story.pid == 100
    story.until(180)
    assert story.pid == 101


def test_a_notice_after_the_end_is_outlived_by_the_clouds_word_too() -> None:
    """Shown when nothing runs any more: no relaunch before its own deadline and a minute."""
    story = preempted(window=30.0)
    story.until(100)
    story.notice(120, id="n2")
    story.until(279)
    assert story.pid == 100
    story.until(280)
    assert story.pid == 101


def test_a_stale_notice_does_not_preempt_the_relaunched_command() -> None:
    """AWS keeps the value when it fails to interrupt."""
    story = preempted()
    story.until(180)
    story.opens(101)
    assert story.notice(0) == []
    assert len(story.sent(Preempt)) == 1
    story.ends(0)
    assert story.code == 0


def test_outlive_starts_again_at_once_when_the_notice_is_withdrawn() -> None:
    """After the command had been ended."""
    story = preempted()
    story.until(5)
    story.gone()
    assert story.pid == 101


def test_outlive_after_a_withdrawn_notice_whose_leave_was_sent() -> None:
    """Withdrawn while the command was leaving."""
    story = Story(outlive=True)
    session = story.opens()
    story.notice()
    story.commits(session)
    story.gone()
    story.ends(75)
    assert story.pid == 101


def test_outlive_does_not_outlive_a_sigterm() -> None:
    """Somebody asked us to go: the machine was never in question."""
    story = Story(outlive=True)
    session = story.opens()
    story.signal(TERM)
    story.commits(session)
    story.ends(75)
    assert story.code == 75


def test_sigterm_while_waiting_ends_with_75() -> None:
    """The work is not done."""
    story = preempted()
    story.signal(TERM)
    assert story.code == 75
    assert story.pid == 100


def test_a_preemption_never_counts_as_a_crash() -> None:
    """`--max-restarts 0` and `--outlive`."""
    story = preempted(max_restarts=0)
    story.until(180)
    assert story.pid == 101
    assert story.machine.restarts == 0


def test_another_notice_while_waiting_is_waited_out_too() -> None:
    """And it has its outcome: nothing was running."""
    story = preempted()
    story.until(170)
    story.notice(100, id="n2", window=120)
    story.until(300)
    assert story.pid == 100
    story.until(330)
    assert story.pid == 101
    assert [o.id for o in story.outcomes] == ["n1", "n2"]
