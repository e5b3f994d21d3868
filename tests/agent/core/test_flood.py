"""A process that tells ever more: the agent keeps no more of it, and of nobody else any less."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import FunctionType, ModuleType

import pytest

from spotguard.agent.actions import Send
from spotguard.agent.core.peers import PATIENCE
from spotguard.hooks.ipc.protocol import (
    LAUNCHER,
    CheckpointDamaged,
    Committed,
    Delivered,
    Message,
    PeerCancelled,
    PeerPreempted,
    Position,
    Preempt,
    Progress,
    TrainingFailed,
    WatchMachines,
)
from tests.fakes.story import Story

#: Messages after which nothing grows any more.
MANY = 300
#: Objects that come and go with a message, such as those of its own.
A_FEW = 40
FLOODER, OTHER = 1000, 2000

#: Each kind of message, with ever new ids, names and steps.
KINDS: dict[str, Callable[[int], Message]] = {
    "position": lambda n: Position(n, attempt=n, still=0.1, phase="forward"),
    "delivered": lambda n: Delivered(f"id-{n}", 0.0, LAUNCHER, "SIGTERM", 1e8),
    "progress": lambda n: Progress(f"id-{n}", "writing", 0.0, n, n, 2 * n),
    "committed": lambda n: Committed("", n, 10, 1.0, f"file:///s/{n}", 0.0),
    "damaged": lambda n: CheckpointDamaged(f"step-{n}", n),
    "failed": lambda n: TrainingFailed("gpu", "E", f"m{n}", "t.py:1", "forward", f"f{n}", n),
    "call": lambda n: PeerPreempted(f"id-{n}", "terminate", "aws", 100.0, 0.0, gone=f"n{n}", meet="n0"),
    "cancelled": lambda n: PeerCancelled(f"id-{n}"),
    "machines": lambda n: WatchMachines({f"10.0.0.1 5000 s{n}": f"n{n}"}),
}


def objects_in(root: object) -> int:
    """How many objects can be reached from here, by way of values alone."""
    seen, waiting = {id(root)}, [root]
    while waiting:
        for found in gc.get_referents(waiting.pop()):
            if id(found) not in seen and not isinstance(found, type | ModuleType | FunctionType):
                seen.add(id(found))
                waiting.append(found)
    return len(seen)


@pytest.mark.parametrize("command", [True, False], ids=["run", "agent"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_that_is_told_ever_more_keeps_no_more(kind: str, command: bool) -> None:
    """Neither in a preemption of its own."""
    story = Story(command=command)
    flooder = story.opens(uid=FLOODER)
    sizes = []
    for turn in range(2):
        for n in range(turn * MANY, (turn + 1) * MANY):
            story.says(flooder, KINDS[kind](n))
        sizes.append(objects_in(story.machine))
    assert sizes[1] <= sizes[0] + A_FEW


def test_calls_that_come_and_go_leave_nothing_behind() -> None:
    """Each begins a notice, and ends it."""
    story = Story(command=False)
    flooder = story.opens(uid=FLOODER)
    sizes = []
    for turn in range(2):
        for n in range(turn * MANY, (turn + 1) * MANY):
            story.called(flooder, f"id-{n}")
            story.commits(flooder)
            story.until(1000.0 * (n + 1))
        assert story.machine.preemption is None
        sizes.append(objects_in(story.machine))
    assert sizes[1] <= sizes[0] + A_FEW


def test_processes_that_come_and_go_in_a_notice_leave_room_for_others() -> None:
    """Each gets it; those that are gone are forgotten, but for as many as a user may have at once."""
    story = Story(command=False)
    rank = story.opens(uid=OTHER)
    story.notice()
    sizes = []
    for _ in range(2):
        for _ in range(600):
            story.closes(story.opens(200, uid=FLOODER, run="flood"))
        sizes.append(objects_in(story.machine))
    assert sizes[1] <= sizes[0] + A_FEW
    p = story.machine.preemption
    assert p is not None
    assert rank in p.parts


def test_notices_of_one_users_launchers_leave_room_for_another_users() -> None:
    story = Story(command=False)
    flooder, rank = story.opens(uid=FLOODER), story.opens(200, uid=OTHER, run="other")
    for n in range(MANY):
        story.says(flooder, KINDS["delivered"](n))
    story.says(rank, Delivered("sigterm", story.now, LAUNCHER, "SIGTERM", 24.0))
    story.says(rank, Committed("sigterm", 7, 1000, 0.5, "file:///s/x", story.now))
    (outcome,) = story.outcomes
    assert (outcome.id, outcome.step, outcome.committed) == ("sigterm", 7, 0.0)


def test_seconds_that_a_process_tells_are_no_more_than_any_save_has() -> None:
    """Else its notices would stay for years."""
    story = Story(command=False)
    story.says(story.opens(), KINDS["delivered"](1))
    story.until(PATIENCE + 10)
    (outcome,) = story.outcomes
    assert outcome.left == PATIENCE


def test_calls_of_one_user_leave_room_for_another_user_and_for_this_machines_notice() -> None:
    """A notice of a source is no call, and every session gets it."""
    story = Story(command=False)
    flooder, rank = story.opens(uid=FLOODER), story.opens(200, uid=OTHER, run="other")
    for n in range(MANY):
        story.says(flooder, KINDS["call"](n))
    story.called(rank, "of the other user")
    p = story.machine.preemption
    assert p is not None
    assert "of the other user" in p.ids
    story.notice(id="real")
    p = story.machine.preemption
    assert p is not None
    assert p.id == "real"
    told = {each.session for each in story.all(Send) if isinstance(each.message, Preempt)}
    assert told == {flooder, rank}
