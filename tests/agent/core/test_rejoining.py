"""Started again without the machine that was noticed: what comes of it, told as stories to the pure machine."""

from __future__ import annotations

import signal
from typing import Any

from spotguard.agent.actions import Launch
from spotguard.hooks.ipc.protocol import Bye
from tests.agent.core.telling import torchrun
from tests.fakes.story import Story

TERM = signal.SIGTERM


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
        assert (story.machine.phase, story.code) == ("restarting", None)
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


def test_a_ctrl_c_by_hand_is_obeyed() -> None:
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
