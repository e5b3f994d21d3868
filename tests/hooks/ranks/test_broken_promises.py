"""A cloud that takes the machines long before the time that it gave: the weights of all ranks are committed by then."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hooks.ranks.checking import an_hour_passes, marked, newest, restores, saved_together
from tests.hooks.ranks.gang import Gang, event, fate, signs, until
from tests.hooks.ranks.machines import Machine

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

WORLD = 2
#: By then a save was rehearsed: what the moments are is known.
STEP = 6
#: Seconds of the notice, and those that the moments would take.
WINDOW, MOMENTS = 40.0, 4.0
MANIFESTS = {"00000-of-00002.json", "00001-of-00002.json"}


@pytest.mark.parametrize("killed", [True, False], ids=["the machine is taken", "all of it arrives"])
def test_weights_of_all_ranks_are_committed_while_the_moments_go_on(
    gang: Gang, killed: bool, folder: Path
) -> None:
    """Everything would fit, and nothing was committed before. One rank's moments are held until all weights' manifests are
    there, and no rank waits for another's."""
    store = folder / "store"
    with signs(folder) as sign, Machine(folder / "agent.sock") as machine:
        reached = [sign(f"reached{rank}") for rank in range(WORLD)]
        held = sign("held")
        gang.begin(
            WORLD,
            "fsdp",
            store,
            *(event(rank, STEP, "loading", "slow link", seconds=MOMENTS) for rank in range(WORLD)),
            *(event(rank, STEP, "loading", "reaches", sign=str(path)) for rank, path in enumerate(reached)),
            fates=[fate(1, r"put .*/0*6-.*/0001\.safetensors", sign=held, every=True)],
            env={"SPOTGUARD_SOCKET": str(machine.socket)},
        )
        until(lambda: all(path.exists() for path in reached))
        machine.notice(WINDOW)
        until(held.exists)
        # The other rank may have put both of its own by then.
        until(lambda: {path.name for path in store.glob("r/checkpoints/*/*-of-00002.json")} == MANIFESTS)
        if killed:
            gang.end(range(WORLD))
        held.unlink()
        said = [] if killed else gang.ended(range(WORLD))
    if killed:
        whole = newest(store)
        assert whole is not None, gang.errors()
        assert (whole.name.step, whole.level) == (STEP, "weights")
        assert marked(store) == []
        an_hour_passes(store)
        then = gang.play(WORLD, "fsdp", store, total=0)
        assert [each["start"] for each in then] == [STEP] * WORLD
        return
    assert saved_together(gang, store, said) == STEP
    assert len(marked(store)) == 1
    whole = newest(store)
    assert whole is not None
    assert whole.level == "full"
    assert restores(gang, WORLD, "fsdp", store) == STEP
