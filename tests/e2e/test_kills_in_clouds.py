"""SIGKILL of the training process while it saves to each of the three clouds: the newest whole checkpoint is restored, bit
for bit, and never a part of one.

The network before the store holds a put still at an exact byte; then the process that put is killed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.clouds import CLOUDS, Day, InCloud, begin_day, puts
from tests.e2e.harness import Machine
from tests.e2e.lives import Drill, Lives
from tests.e2e.trainee import Trainee
from tests.fixtures_servers import FaultsBefore
from tests.servers.faultplan import Asked, Fault, Where
from tests.tiers import with_nights

pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.slow]

#: Instants of a put: at its first byte, in its body, and done, but not yet answered.
INSTANTS: tuple[tuple[Where, int], ...] = (("request", 0), ("request", 100), ("response", 0))
#: The puts of a save of this training script: what is in front of its manifest, that, and the marker.
OBJECTS, MANIFEST, MARKER = (1, 2), 3, 4


@pytest.fixture(params=CLOUDS)
def day(request: pytest.FixtureRequest, faults_before: FaultsBefore) -> Day:
    return begin_day(request.param, request, faults_before)


@pytest.fixture
def machine(tmp_path: Path, day: Day) -> Iterator[Machine]:
    made = InCloud(tmp_path, day)
    yield made
    made.close()


def put_number(count: int) -> Callable[[Asked], bool]:
    """The put that is so many puts from now."""
    left = count

    def matching(asked: Asked) -> bool:
        nonlocal left
        left -= puts(asked)
        return puts(asked) and left == 0

    return matching


def die_at(
    lives: Lives, day: Day, number: int, where: Where, after: int, save: Callable[[], object], *, cut: bool
) -> None:
    """Have it save, and kill it when put `number` stands still at this byte.

    Args:
        cut: nothing of it goes on, as when the machine dies; else what the kernel has of it arrives all the same.
    """
    day.network.inject(Fault("stall", where, after=after, times=1, matching=put_number(number)))
    save()
    assert day.network.wait_for_stalled(), f"there is no put {number}"
    lives.kill()
    if cut:
        day.network.vanish()
    day.network.heal()
    assert day.network.wait_for_rest()
    if cut:
        day.network.come_back()


def ways_to_save(lives: Lives) -> dict[str, Callable[[], object]]:
    return {"drill": lambda: Drill(lives.trainee.machine.socket()), "save": lambda: lives.running.say("save")}


def one_step(lives: Lives) -> int:
    """A life that took a step which nobody saved; which step it began at."""
    start = lives.again()
    lives.running.say("go 1")
    lives.trainee.stepped(lives.running, start + 1)
    return start


@pytest.mark.parametrize("day", with_nights(CLOUDS, ("az", "gs")), indirect=True)
def test_a_save_is_killed_at_each_of_its_puts(trainee: Trainee, day: Day) -> None:
    """S15, at each instant of each put: whole from the manifest on, and nothing before."""
    lives = Lives.under_run(trainee)
    for number in (*OBJECTS, MANIFEST, MARKER):
        for where, after in INSTANTS:
            start = one_step(lives)
            die_at(lives, day, number, where, after, ways_to_save(lives)["drill"], cut=True)
            whole = number == MARKER or (number == MANIFEST and where == "response")
            assert trainee.newest() == start + whole, (number, where, after)
    lives.again()
    lives.kill()


def seeded_kills(trainee: Trainee, day: Day, seed: int, count: int) -> None:
    """Lives that save by hand, at a notice or beside training, and die at an instant that the seed chooses."""
    rng = random.Random(seed)
    beside = seed % 2 == 1
    lives = Lives.under_run(trainee, "--every 0.01" if beside else "--every off")
    restored = []
    for _ in range(count):
        number = rng.randint(1, 8 if beside else MARKER)
        where: Where = rng.choice(("request", "request", "response"))
        after, cut = rng.choice([0, rng.randint(1, 5000)]) if where == "request" else 0, rng.random() < 0.5
        if beside and rng.random() < 0.3:
            restored.append(start := lives.again())
            lives.running.say("free")
            trainee.stepped(lives.running, start + rng.randint(1, 40))
            lives.kill()
            assert day.network.wait_for_rest()
        elif beside:
            restored.append(lives.again())
            die_at(lives, day, number, where, after, lambda: lives.running.say("free"), cut=cut)
        else:
            restored.append(one_step(lives))
            die_at(lives, day, number, where, after, rng.choice(list(ways_to_save(lives).values())), cut=cut)
    restored.append(lives.again())
    lives.kill()
    assert len(set(restored)) > 1, f"no checkpoint was made: {restored}"


@pytest.mark.parametrize("seed", [1], ids="seed-{}".format)
def test_saves_are_killed_at_random_instants(trainee: Trainee, day: Day, seed: int) -> None:
    seeded_kills(trainee, day, seed, count=5)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 13), ids="seed-{}".format)
def test_saves_are_killed_at_a_hundred_random_instants(trainee: Trainee, day: Day, seed: int) -> None:
    """The same with other seeds, eleven times ten lives for each cloud."""
    seeded_kills(trainee, day, seed, count=10)
