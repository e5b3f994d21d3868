"""The process that serves the job's store stands still, and answers nobody: everybody comes out in time all the same, and all that
live agree through the second store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hooks.ranks.checking import marked, restores
from tests.hooks.ranks.gang import HOST, Gang, event, fate, signs, until
from tests.hooks.ranks.machines import Machine

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

#: Seconds of the notice. An agreement that gets no answer is given up after 0.4 of what the save has; and who leaves asks
#: the store once more, in vain.
WINDOW, RESERVE = 14.0, 5.0
WORLD = 3
#: Calls for a notice at step 4.
OBJECT, MANIFEST = r"put .*/0*4-.*safetensors", r"put .*/0*4-.*-of-\d+\.json"


@pytest.mark.parametrize(
    ("way", "calls", "step"),
    [
        pytest.param("fsdp", {}, 4, id="before the call", marks=pytest.mark.slow),
        pytest.param("ddp", {1: "set offer/2"}, 4, id="before the offers", marks=pytest.mark.slow),
        # Each of them: who is held there has heard what was agreed on.
        pytest.param("fsdp", dict.fromkeys(range(WORLD), OBJECT), 4, id="between decision and commit"),
    ],
)
def test_a_launcher_that_stands_still_keeps_nobody(
    gang: Gang, way: str, calls: dict[int, str], step: int, folder: Path
) -> None:
    """Ranks are held at these calls until the store is silent. What is agreed on by then needs no store any more, and the rest
    is agreed on in the second one, by all ranks."""
    store, left = folder / "store", folder / "left"
    with signs(folder) as sign, Machine(folder / "agent.sock", reserve=RESERVE) as machine:
        reached, held = sign("reached"), {rank: sign(f"held{rank}") for rank in calls}
        # Who has heard may go one step further before its offer shuts its gate, into a collective with ranks that leave:
        # an agent ends it at the deadline. A gate is shut only where the call is answered.
        shut = bool(calls)
        gang.begin(
            WORLD,
            way,
            store,
            event(0, 4, "loading", "reaches", sign=str(reached), shut=shut),
            *(event(rank, 4, "loading", "noticed", shut=shut) for rank in range(1, WORLD)),
            fates=[fate(rank, call, sign=held[rank]) for rank, call in calls.items()],
            saves=[2],
            hosted=True,
            left=str(left),
            env={"SPOTGUARD_SOCKET": str(machine.socket)},
        )
        until(reached.exists)
        if calls:
            machine.notice(WINDOW)
            until(lambda: all(each.exists() for each in held.values()))
        with gang.stopped(HOST):
            if not calls:
                machine.notice(WINDOW)
            for each in held.values():
                each.unlink()
            until(lambda: all(Path(f"{left}{rank}").exists() for rank in range(WORLD)))
            assert machine.left() > 0
        said = gang.ended(range(WORLD))
    gang.end(range(WORLD))  # their mailboxes still wait, and nobody will ring
    assert [each["ended"] for each in said] == ["preempted"] * WORLD, (said, gang.errors())
    assert [each["last"] for each in said] == [step] * WORLD, gang.errors()
    outcome = machine.outcomes()[0]
    assert outcome["ended"] == "all processes were asked to leave"  # and not at the deadline
    assert (outcome["committed"] is None) == (step == 2)
    assert len(marked(store)) == (1 if step == 2 else 2)
    assert restores(gang, WORLD, way, store) == step


@pytest.mark.parametrize(
    ("way", "calls", "step"),
    [
        pytest.param("ddp", {1: "set offer/2"}, 4, id="before the offers", marks=pytest.mark.slow),
        pytest.param(
            "ddp", {0: OBJECT, 1: OBJECT}, 2, id="before its share is there", marks=pytest.mark.slow
        ),
        pytest.param("fsdp", dict.fromkeys(range(WORLD), MANIFEST), 4, id="when its share is there"),
    ],
)
def test_a_rank_that_stands_still_with_the_store_keeps_no_other_machine(
    gang: Gang, way: str, calls: dict[int, str], step: int, folder: Path
) -> None:
    """The first rank serves the store. It never goes on; the machine of the others is noticed."""
    store = folder / "store"
    with (
        signs(folder) as sign,
        Machine(folder / "0.sock") as first,
        Machine(folder / "1.sock") as machine,
    ):
        reached = sign("reached")
        held = {rank: sign(f"held{rank}") for rank in calls}
        gang.begin(
            WORLD,
            way,
            store,
            event(2, 4, "loading", "reaches", sign=str(reached)),
            *(event(rank, 4, "loading", "noticed") for rank in range(2)),
            fates=[
                fate(rank, call, sign=held[rank], after=(rank, call) == (0, MANIFEST))
                for rank, call in calls.items()
            ],
            saves=[2],
            envs={
                rank: {"SPOTGUARD_SOCKET": str((machine if rank else first).socket)} for rank in range(WORLD)
            },
        )
        until(reached.exists)
        machine.notice(8.0)
        until(lambda: all(each.exists() for each in held.values()))
        with gang.stopped(0):
            for each in held.values():
                each.unlink()
            until(lambda: bool(machine.outcomes()))
            gang.end(
                range(WORLD)
            )  # who is in a collective with the first one cannot leave, and its agent kills it
    outcome = machine.outcomes()[0]
    assert outcome["ended"] == "all processes were asked to leave"  # and not at the deadline
    assert outcome["step"] == (None if step == 2 else step)
    assert len(marked(store)) == (1 if step == 2 else 2)
    assert restores(gang, WORLD, way, store) == step
