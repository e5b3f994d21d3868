"""A rank that does not go on, or is gone: what the others can save, they save, and everybody comes out."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.hooks.ranks.checking import marked, newest, restores
from tests.hooks.ranks.gang import Gang, event, fate, signs, until
from tests.hooks.ranks.machines import Machine
from tests.tiers import few_fast

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("way", few_fast(["fsdp", "ddp"]))
def test_a_rank_whose_loader_never_returns_is_saved_with_the_others(
    gang: Gang, way: str, folder: Path
) -> None:
    said = gang.play(2, way, folder, event(1, 4, "loading", "stuck"), event(0, 4, "loading"))
    assert [each["last"] for each in said] == [4, 4], gang.errors()
    assert said[0]["ended"] == "preempted"
    whole = newest(folder)
    assert whole is not None
    assert whole.name.step == 4
    assert restores(gang, 2, way, folder) == 4


@pytest.mark.slow
@pytest.mark.parametrize("way", [pytest.param("ddp", marks=pytest.mark.soak), "fsdp"])
def test_a_rank_whose_training_thread_sleeps_for_an_hour_is_saved_and_is_ended_by_a_signal(
    gang: Gang, way: str, folder: Path
) -> None:
    """It sleeps in C. The other one waits for it in a collective."""
    store = folder / "store"
    with signs(folder) as sign, Machine(folder / "agent.sock") as machine:
        asleep, beside = sign("asleep"), sign("beside")
        gang.begin(
            2,
            way,
            store,
            event(0, 4, "loading", "passes", sign=str(beside)),
            event(1, 4, "loading", "passes", sign=str(asleep)),
            event(1, 4, "loading", "sleeps"),
            saves=[2],
            env={"SPOTGUARD_SOCKET": str(machine.socket)},
        )
        until(lambda: asleep.exists() and beside.exists())
        machine.notice(20.0)
        until(lambda: bool(machine.outcomes()))
        assert not gang.dead(2)
        gang.signal(1, signal.SIGTERM)  # the agent's to the group, after the commit
        until(lambda: gang.gone(1))
        said = gang.survivors(2)
    assert list(said) == [0]
    outcome = machine.outcomes()[0]
    assert outcome["step"] == 4, gang.errors()
    assert outcome["slack"] > 0
    assert outcome["ended"] == "all processes were asked to leave"
    assert len(marked(store)) == 2
    assert restores(gang, 2, way, store) == 4


@pytest.mark.parametrize("drilled", [False, True], ids=["", "after a drill"])
def test_a_rank_whose_training_ends_while_its_notice_is_called_to_the_others_is_saved(
    gang: Gang, drilled: bool, folder: Path
) -> None:
    """Both know of the notice, and end; the save begins with the call. (A drill that was over is no answer to it.)"""
    store = folder / "store"
    drill = [
        event(0, 2, "loading", "withdrawn when saved", id="d"),
        event(0, 2, "loading", "notice", id="d", drill=True),
    ]
    with signs(folder) as sign, Machine(folder / "agent.sock") as machine:
        reached, called = sign("reached"), [sign(f"called{rank}") for rank in range(2)]
        closing = [sign(f"closing{rank}") for rank in range(2)]
        gang.begin(
            2,
            "fsdp",
            store,
            event(1, 4, "evaluation", "reaches", sign=str(reached)),
            event(0, 4, "evaluation", "noticed"),
            *(event(rank, 4, "closing", "passes", sign=str(path)) for rank, path in enumerate(closing)),
            *(drill if drilled else []),
            fates=[
                fate(rank, f"claim call/{3 if drilled else 2}", sign=path) for rank, path in enumerate(called)
            ],
            saves=[] if drilled else [2],
            total=5,
            env={"SPOTGUARD_SOCKET": str(machine.socket)},
        )
        until(reached.exists)
        machine.notice(20.0)
        until(lambda: all(path.exists() for path in closing))
        for path in called:
            path.unlink(missing_ok=True)
        said = gang.ended(range(2))
    assert [each["ended"] for each in said] == ["at its end"] * 2, gang.errors()
    assert [each["last"] for each in said] == [5, 5], gang.errors()
    assert [each["threads"] for each in said] == [[]] * 2
    assert machine.outcomes()[0]["step"] == 5
    assert restores(gang, 2, "fsdp", store) == 5


@pytest.mark.slow
def test_ranks_in_a_collective_whose_peer_was_killed_save_what_it_held_too(gang: Gang, folder: Path) -> None:
    """The first rank waits in it for its neighbours, and they run into the dead one."""
    store = folder / "store"
    with signs(folder) as sign, Machine(folder / "agent.sock") as machine:
        waits = sign("waits")
        gang.begin(
            4,
            "ddp",
            store,
            event(2, 4, "loading", "kill"),
            event(0, 4, "backward", "passes", sign=str(waits)),
            *(event(rank, 4, "backward", "noticed") for rank in (1, 3)),
            saves=[2],
            env={"SPOTGUARD_SOCKET": str(machine.socket)},
        )
        until(lambda: waits.exists() and gang.gone(2))
        machine.notice(8.0)
        said = gang.survivors(4)
    assert list(said) == [0, 1, 3]
    for each in said.values():
        # Who ran into it ended by itself, and not before its save.
        assert each["ended"] == "preempted" or each["ended"].startswith("RuntimeError"), gang.errors()
        assert each["last"] == 4, gang.errors()
        assert each["threads"] == []
    assert any(each["ended"] != "preempted" for each in said.values())
    assert len(marked(store)) == 2
    assert restores(gang, 4, "ddp", store) == 4


def killed(gang: Gang, way: str, store: Path) -> None:
    """The last of three ranks dies, then the first is given a notice; the others stand at one step."""
    dead = gang.pid(2)
    gang.begin(
        3,
        way,
        store,
        event(2, 4, "loading", "kill"),
        event(0, 4, "loading", "outlives", pid=dead),
        event(0, 4, "loading", seconds=5.0),
        event(0, 4, "loading", "noticed"),
        event(1, 4, "loading", "noticed"),
        saves=[2],
    )
    for each in gang.ended([0, 1]):
        assert each["threads"] == []


@pytest.mark.slow
def test_the_others_save_without_a_replica_that_was_killed(gang: Gang, folder: Path) -> None:
    killed(gang, "ddp", folder)
    whole = newest(folder)
    assert whole is not None
    assert whole.name.step == 4, gang.errors()
    assert restores(gang, 3, "ddp", folder) == 4


@pytest.mark.slow
def test_nothing_is_committed_without_a_shard_that_was_killed(gang: Gang, folder: Path) -> None:
    killed(gang, "fsdp", folder)
    assert "no other rank holds the state of rank" in gang.errors()
    assert len(marked(folder)) == 1
    assert restores(gang, 3, "fsdp", folder) == 2


def test_a_window_that_is_far_too_short_leaves_the_previous_checkpoint(gang: Gang, folder: Path) -> None:
    """Both ranks stay in the middle of a step until the deadline is over, and the agent has them leave."""
    said = gang.play(
        2,
        "fsdp",
        folder,
        event(0, 4, "before boundary", "notice", id="n", drill=False, seconds=0.1),
        *(event(rank, 4, "before boundary", "told to leave", id="n") for rank in range(2)),
        saves=[2],
    )
    assert [each["ended"] for each in said] == ["preempted"] * 2, gang.errors()
    assert [each["threads"] for each in said] == [[]] * 2
    assert [each["last"] for each in said] == [2, 2]
    assert len(marked(folder)) == 1
    assert restores(gang, 2, "fsdp", folder) == 2
