"""On a shared service, one user's rehearsed preemption is that user's alone."""

from __future__ import annotations

from spotguard.agent.actions import Announce
from spotguard.hooks.ipc.protocol import Preempt
from tests.fakes.story import Story

ALICE, BOB = 1000, 2000


def alices_preemption() -> Story:
    """A service that two users share, and the rehearsed preemption that one of them asked for."""
    story = Story(command=False)
    story.opens(11, uid=ALICE)
    story.asks(uid=ALICE, preempt=True)
    assert len(story.sent(Preempt)) == 1
    return story


def test_drill_of_another_user() -> None:
    """Bob's process is told of no notice, neither in its Welcome nor after it."""
    story = alices_preemption()
    story.opens(22, uid=BOB)
    assert len(story.sent(Preempt)) == 1
    assert not story.machine.departing


def test_drill_of_another_user_and_the_operators_command() -> None:
    """The command of `--on-notice` may drain the whole machine: only root's drill runs it."""
    assert alices_preemption().all(Announce) == []


def test_drill_of_root_runs_the_operators_command() -> None:
    """The operator rehearses all of it."""
    story = Story(command=False)
    story.opens(11, uid=ALICE)
    story.asks(uid=0, preempt=True)
    assert story.machine.departing
    assert len(story.all(Announce)) == 1


def test_drill_of_the_command_s_own_user_runs_all_of_it() -> None:
    """Of `spotguard run` the user and the operator are one: whoever registers late parks."""
    story = Story(command=True)
    story.opens(100, uid=ALICE)
    story.asks(uid=ALICE, preempt=True)
    assert story.machine.departing
    assert len(story.all(Announce)) == 1
