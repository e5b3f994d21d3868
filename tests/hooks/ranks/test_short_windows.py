"""Windows that are too short for several ranks: the checkpoint before stays, and everybody is out in time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hooks.ranks.checking import marked, restores
from tests.hooks.ranks.gang import Gang, event, fate, signs, until
from tests.hooks.ranks.machines import Machine

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

#: Each rank is on a machine of its own.
WORLD = 3
#: Seconds: what a save has of it, and for the words to the agent. The last rank to come out comes out behind that.
WINDOW, RESERVE = 3.0, 1.5


@pytest.mark.parametrize(
    ("way", "call", "noticed", "step"),
    [
        pytest.param("fsdp", "set offer/[2-9]", [0, 1, 2], 2, id="to agree", marks=pytest.mark.soak),
        pytest.param("fsdp", "put .*/0*4-.*safetensors", [0, 1, 2], 2, id="for the bytes"),
        # What was on its way arrives, and with it the set is complete: the others are gone, and whoever restores sees it. The
        # rank that was held may see it too, at its last look.
        pytest.param(
            "hsdp",
            r"put .*/0*4-.*-of-\d+\.json",
            [0, 1, 2, 3],
            4,
            id="for a manifest",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            "fsdp", "put .*/0*4-.*safetensors", [1], 2, id="for who goes alone", marks=pytest.mark.soak
        ),
    ],
)
def test_a_save_that_does_not_fit_has_no_marker_and_leaves_the_checkpoint_before(
    gang: Gang, way: str, call: str, noticed: Sequence[int], step: int, folder: Path
) -> None:
    """One rank is held at each such call, all others wait for it for as long as they have, and it is let go when they are
    out. (The notices come apart by some milliseconds: the last of them may begin a save of its own.)"""
    world, store = 4 if way == "hsdp" else WORLD, folder / "store"
    slow = 1
    with ExitStack() as stack:
        sign = stack.enter_context(signs(folder))
        machines = [
            stack.enter_context(Machine(folder / f"{rank}.sock", reserve=RESERVE)) for rank in range(world)
        ]
        there, held = [sign(f"there{rank}") for rank in range(world)], sign("held")
        gang.begin(
            world,
            way,
            store,
            *(event(rank, 4, "loading", "reaches", sign=str(path)) for rank, path in enumerate(there)),
            fates=[fate(slow, call, sign=held, every=True)],
            saves=[2],
            envs={rank: {"SPOTGUARD_SOCKET": str(each.socket)} for rank, each in enumerate(machines)},
        )
        until(lambda: all(path.exists() for path in there))
        for rank in noticed:
            machines[rank].notice(WINDOW)
        until(held.exists)
        others = [machines[rank] for rank in noticed if rank != slow]
        until(lambda: all(machine.outcomes() for machine in others))
        if not others:
            until(lambda: machines[slow].left() < RESERVE)
        held.unlink()
        said = gang.ended(range(world))
    seen = [each["last"] for each in said]
    assert [last for rank, last in enumerate(seen) if rank != slow] == [2] * (world - 1), gang.errors()
    assert seen[slow] in (2, step), gang.errors()
    assert [each["threads"] for each in said] == [[]] * world
    for rank in noticed:
        (outcome,) = machines[rank].outcomes()
        assert (outcome["committed"] is None) is (seen[rank] == 2), "what it saw, and nothing else"
        if rank != slow:
            assert outcome["ended"] == "all processes were asked to leave"  # and not at the deadline
    assert [name.split("-")[0] for name in marked(store)] == [f"{2:09}"]
    assert restores(gang, world, way, store) == step
