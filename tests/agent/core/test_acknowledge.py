"""When a cloud is told that it may begin: after everything is committed, and never before or otherwise."""

from __future__ import annotations

import signal

import pytest

from spotguard.agent.actions import Acknowledge, Publish
from spotguard.agent.events import Closed, Watching
from tests.fakes.story import Story


def acknowledged(story: Story) -> list[str]:
    return [action.notice_id for action in story.all(Acknowledge)]


def test_a_command_whose_processes_have_all_committed_is_acknowledged_at_its_end() -> None:
    """After the outcome, which the machine's end must not overtake."""
    story = Story(acknowledge=True)
    one, two = story.opens(), story.opens(101)
    story.notice(30)
    story.commits(one)
    story.commits(two)
    assert acknowledged(story) == []
    story.closes(two)
    story.ends(75)
    assert acknowledged(story) == ["n1"]
    kinds = [type(action) for _, action in story.log]
    assert kinds.index(Publish) < kinds.index(Acknowledge)
    assert story.code == 75


def test_every_notice_that_stands_is_meant() -> None:
    """Two of Azure's, and the SIGTERM that came with them, which is no source's."""
    story = Story(acknowledge=True)
    one = story.opens()
    story.notice(30)
    story.notice(25, id="n2")
    story.signal(signal.SIGTERM)
    story.commits(one)
    story.ends(75)
    assert acknowledged(story)[:2] == ["n1", "n2"]


def test_nothing_is_acknowledged_unless_somebody_asked_for_it() -> None:
    """Off by default: it may shorten the warning of others."""
    story = Story()
    one = story.opens()
    story.notice(30)
    story.commits(one)
    story.ends(75)
    assert (story.code, acknowledged(story)) == (75, [])


@pytest.mark.parametrize("how", ["failed", "died", "out of time"])
def test_an_unsaved_notice_is_not_acknowledged(how: str) -> None:
    """One of two has not committed: the rest of the window is worth more than an early end."""
    story = Story(acknowledge=True)
    one, two = story.opens(), story.opens(101)
    story.notice(30)
    story.commits(one)
    if how == "failed":
        story.fails(two)
    elif how == "died":
        story.closes(two)
    else:
        story.until(29)
    story.ends(75)
    story.until(40)
    assert len(story.outcomes) == 1
    assert acknowledged(story) == []


def test_a_command_that_registered_nothing_is_not_acknowledged() -> None:
    """Nobody knows what it saved."""
    story = Story(acknowledge=True)
    story.notice(30)
    story.ends(75)
    story.until(40)
    assert len(story.outcomes) == 1
    assert acknowledged(story) == []


def test_a_withdrawn_notice_is_not_acknowledged() -> None:
    """There is nothing left that could begin."""
    story = Story(acknowledge=True)
    one = story.opens()
    story.notice(30)
    story.told(one)
    story.gone()
    assert len(story.outcomes) == 1
    assert acknowledged(story) == []


def test_a_process_that_lost_its_socket_before_the_notice_is_not_forgotten() -> None:
    """It lives, and may have something to lose."""
    story = Story(acknowledge=True, command=False)
    one, two = story.opens(), story.opens(101)
    story.closes(two, alive=True)
    story.notice(30)
    story.commits(one)
    story.until(31)
    assert len(story.outcomes) == 1
    assert acknowledged(story) == []


def test_a_service_acknowledges_when_all_have_committed() -> None:
    """Of all users."""
    story = Story(acknowledge=True, command=False)
    one, two = story.opens(uid=1000), story.opens(101, uid=1001, run="other")
    story.notice(30)
    story.commits(one)
    assert acknowledged(story) == []
    story.commits(two)
    assert acknowledged(story) == ["n1"]


def test_a_service_that_polls_for_runs_leaves_it_be() -> None:
    """What they guard is registered with them; when they are gone, it is alone again."""
    for leaves in (False, True):
        story = Story(acknowledge=True, command=False)
        one = story.opens()
        story.on(Watching(77))
        if leaves:
            story.on(Closed(77, "closed"))
        story.notice(30)
        story.commits(one)
        assert acknowledged(story) == (["n1"] if leaves else [])


def test_a_rehearsal_is_no_end() -> None:
    """Its checkpoint is real; no cloud is told of it."""
    story = Story(acknowledge=True)
    one = story.opens()
    story.asks()
    story.commits(one)
    story.until(60)
    assert len(story.outcomes) == 1
    assert acknowledged(story) == []
