"""Pipeline stages: nothing makes their steps one, and a notice finds them steps apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hooks.ranks.checking import marked, restores, saved_together, straight
from tests.hooks.ranks.gang import Gang, event, until
from tests.hooks.ranks.machines import Machine

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

#: Stages. The first one cannot go on without the last one's gradients, or not at all.
WORLD = 3


@pytest.mark.parametrize(
    ("training", "places", "step"),
    [
        # The last stage has stepped, and waits for what the first one sends in its next step.
        pytest.param(
            "back and forth",
            [(4, "backward"), (4, "backward"), (5, "loading")],
            5,
            id="by one, the last ahead",
        ),
        pytest.param(
            "ahead", [(6, "loading"), (5, "loading"), (4, "loading")], 6, id="by two, the first ahead"
        ),
        # Its count is what it will be: whoever is in `optimizer.step()` offers the step behind it.
        pytest.param(
            "ahead",
            [(5, "optimizer"), (5, "loading"), (4, "forward")],
            6,
            id="by two, in its optimizer",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_stages_that_are_steps_apart_save_one_step(
    gang: Gang, training: str, places: list[tuple[int, str]], step: int, folder: Path
) -> None:
    """Each stands there from before the notice until all have offered; whoever is behind then comes to the others."""
    store = folder / "store"
    sign = folder / "reached.sign"
    begun = [folder / f"begun{rank}.sign" for rank in range(WORLD)]  # each has a boundary to save
    undisturbed = straight(gang, WORLD, "stages", folder, training=training)
    ahead = max(range(WORLD), key=lambda rank: (places[rank][0], rank == 0))
    with Machine(folder / "agent.sock") as machine:
        gang.begin(
            WORLD,
            "stages",
            store,
            *(event(rank, 1, "loading", "passes", sign=str(path)) for rank, path in enumerate(begun)),
            event(ahead, *places[ahead], "reaches", sign=str(sign)),
            *(event(rank, *place, "agreed") for rank, place in enumerate(places)),
            training=training,
            env={"SPOTGUARD_SOCKET": str(machine.socket)},
        )
        until(lambda: all(each.exists() for each in (sign, *begun)))
        machine.notice(20.0)
        said = gang.ended(range(WORLD))
    assert saved_together(gang, store, said) == step
    assert [each["completed"] for each in said] == [step] * WORLD  # nobody went further, or was left behind
    assert len(marked(store)) == 1
    for mine, other in zip(said, undisturbed, strict=True):
        assert mine["losses"] == {at: loss for at, loss in other["losses"].items() if at in mine["losses"]}
    assert restores(gang, WORLD, "stages", store, training=training) == step
