"""A second machine is noticed, or a rank is killed, at any call of the save for the first notice. Each rank is on a machine
of its own. `-k seeds-from-N` chooses a part of the seeds.
"""

from __future__ import annotations

import random
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hooks.ranks.checking import newest, restores, saved_together, seeded
from tests.hooks.ranks.gang import PHASES, Gang, event, fate, signs, until
from tests.hooks.ranks.machines import Machine

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

WAYS = [("ddp", 2), ("ddp", 3), ("fsdp", 2), ("fsdp", 3), ("hsdp", 4), ("tp_fsdp", 4)]
#: Calls of the save for a notice, not of the one by hand before it; and how many of them a rank makes.
NOTICED, CALLS = r"(call|offers?|decision)/[2-9]|put .*checkpoints/0*[3-9]-", 9
#: Seconds. One that is killed is waited for until its machine's deadline.
WINDOW, SHORT = 30.0, 4.0


def one_day(gang: Gang, seed: int, folder: Path) -> None:
    chance = random.Random(seed)
    way, world = chance.choice(WAYS)
    first, second = chance.sample(range(world), 2)
    kills = chance.random() < 0.4
    victim, slow = chance.randrange(world), chance.randrange(world)
    place = (chance.randrange(3, 6), chance.choice(PHASES))
    hold = fate(slow, NOTICED, chance.randrange(CALLS), after=chance.random() < 0.5, sign=folder / "held")
    store, window = folder / "store", SHORT if kills else WINDOW
    with ExitStack() as stack:
        sign = stack.enter_context(signs(folder))
        machines = [stack.enter_context(Machine(folder / f"{rank}.sock")) for rank in range(world)]
        reached, held = sign("reached"), folder / "held"
        gang.begin(
            world,
            way,
            store,
            event(first, *place, "reaches", sign=str(reached)),
            fates=[hold],
            saves=[2],
            total=100,
            optimizers=2,
            envs={rank: {"SPOTGUARD_SOCKET": str(each.socket)} for rank, each in enumerate(machines)},
        )
        until(reached.exists)
        machines[first].notice(window)
        until(lambda: held.exists() or all(machine.outcomes() for machine in machines))
        if not kills or chance.random() < 0.5:
            machines[second].notice(window * chance.choice([0.5, 1.0]), id="n2")
        if kills:
            gang.signal(victim, signal.SIGKILL)
        held.unlink(missing_ok=True)
        if kills:
            until(lambda: bool(machines[first].outcomes()))
            gang.end(range(world))
        else:
            step = saved_together(gang, store, gang.ended(range(world)))
            assert place[0] <= step <= place[0] + 2
    at = restores(gang, world, way, store, optimizers=2)
    committed = [said["step"] for machine in machines for said in machine.outcomes() if said["committed"]]
    assert at >= max(committed, default=2)
    whole = newest(store)
    assert whole is not None
    assert whole.name.step == at


def days(gang: Gang, seeds: range, folder: Path) -> None:
    for seed in seeds:
        with seeded(seed, folder) as own:
            one_day(gang, seed, own)


def test_one_step_is_saved_or_the_one_before_stands(gang: Gang, folder: Path) -> None:
    days(gang, range(1), folder)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seeds", range(1, 151, 50), ids="seeds-from-{}".format)
def test_one_step_is_saved_or_the_one_before_stands_hundreds_of_times(
    gang: Gang, seeds: int, folder: Path
) -> None:
    days(gang, range(seeds, seeds + 50), folder)
