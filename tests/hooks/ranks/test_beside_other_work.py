"""A notice while ranks do something else together: while they restore, or while they save beside training."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hooks.ranks.checking import marked, restores, saved_together
from tests.hooks.ranks.gang import Gang, event, fate, signs, until
from tests.hooks.ranks.machines import Machine
from tests.tiers import few_fast

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("way", few_fast(["fsdp", "ddp"]))
@pytest.mark.parametrize("reading", [False, True], ids=["before", "while one reads"])
def test_a_notice_before_all_have_restored_leaves_the_checkpoint_that_they_would_have(
    gang: Gang, way: str, reading: bool, folder: Path
) -> None:
    store = folder / "store"
    gang.play(2, way, store, saves=[3], total=3)
    before = marked(store)
    with signs(folder) as sign, Machine(folder / "agent.sock") as machine:
        held, reached = sign("held"), sign("reached")
        gang.begin(
            2,
            way,
            store,
            *([] if reading else [event(0, -1, "restore", "reaches", sign=str(reached))]),
            fates=[fate(1, "^read_into ", sign=held)] if reading else [],
            from_restore=True,
            env={"SPOTGUARD_SOCKET": str(machine.socket)},
        )
        until((held if reading else reached).exists)
        machine.notice(20.0)
        until(lambda: bool(machine.outcomes()))  # all have answered, and are told to leave
        held.unlink(missing_ok=True)
        said = gang.ended(range(2))
    assert [each["ended"] for each in said] == ["preempted"] * 2, gang.errors()
    assert [each["threads"] for each in said] == [[]] * 2
    assert [each["losses"] for each in said] == [{}] * 2
    assert machine.outcomes()[0]["committed"] is None
    assert marked(store) == before
    assert restores(gang, 2, way, store) == 3


@pytest.mark.parametrize(
    ("way", "rank", "call", "loading"),
    few_fast(
        [
            ("ddp", 0, "set offer", 4),  # and no further: it is held before its next change
            ("fsdp", 0, r"put .*-of-\d+\.json", 5),
            ("fsdp", 1, "put .*safetensors", 5),
            ("ddp", 1, "put .*safetensors", 5),
        ],
        2,
    ),
)
def test_a_notice_ends_a_checkpoint_beside_training_that_one_rank_is_late_with(
    gang: Gang, way: str, rank: int, call: str, loading: int, folder: Path
) -> None:
    store = folder / "store"
    with signs(folder) as sign, Machine(folder / "agent.sock") as machine:
        held, heard = sign("held"), sign("heard")
        gang.begin(
            2,
            way,
            store,
            event(0, 3, "evaluation", "background"),
            *([event(0, 4, "loading", "agreed")] if loading == 5 else []),
            event(0, loading, "loading", "hears of", count=1, sign=str(heard)),
            fates=[fate(rank, call, sign=held)],
            env={"SPOTGUARD_SOCKET": str(machine.socket)},
        )
        until(held.exists)
        machine.notice(20.0)
        until(heard.exists)
        held.unlink()
        said = gang.ended(range(2))
    step = saved_together(gang, store, said)
    assert step in (loading, loading + 1)
    assert restores(gang, 2, way, store) == step
    assert machine.outcomes()[0]["slack"] > 0
