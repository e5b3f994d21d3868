"""A notice under a launcher: its group is ended together, and no rank's save is cut off, as stories to the pure machine."""

from __future__ import annotations

import signal

from spotguard.hooks.ipc.protocol import Leave
from tests.agent.core.telling import only
from tests.fakes.story import Story

TERM = signal.SIGTERM


def test_under_a_launcher_term_goes_to_the_group_and_nobody_leaves_first() -> None:
    """A worker that exits first is started again on the doomed machine."""
    story = Story()
    ranks = [story.opens(pid) for pid in (201, 202)]
    story.notice()
    story.commits(ranks[0])
    assert only(story.signals) == []
    story.commits(ranks[1])
    assert only(story.signals) == [TERM]
    assert not story.sent(Leave)
    for rank in ranks:
        story.closes(rank)
    story.ends(-15)
    assert story.code == 75


def test_law_11_no_term_while_one_rank_still_saves() -> None:
    """One rank has failed, one is dead, one saves: the launcher is left alone until that one is done."""
    story = Story()
    a, b, c = (story.opens(pid) for pid in (201, 202, 203))
    story.notice()
    story.fails(a)
    story.closes(b)
    story.until(100)
    assert only(story.signals) == []
    assert not story.killed
    story.commits(c)
    assert only(story.signals) == [TERM]


def test_a_worker_that_outlives_its_launcher_finishes_its_save() -> None:
    """The launcher's end is not the save's: the group is killed when the save is done or time is up."""
    story = Story()
    rank = story.opens(201)
    story.notice()
    story.ends(1)
    story.until(50)
    assert story.code is None
    assert story.signalled_sessions == []
    story.commits(rank)
    assert story.sent(Leave) == [(rank, Leave("n1", 75))]
    assert story.signalled_sessions == []
    story.closes(rank)
    assert story.code == 75
    assert not story.killed
    assert story.outcomes[0].committed is not None


def test_processes_left_by_a_launcher_are_killed_at_the_reserve() -> None:
    """It would hold the GPUs of whoever comes next."""
    story = Story()
    story.opens(201)
    story.notice()
    story.ends(1)
    story.until(108)
    assert story.killed
    assert story.code == 75
