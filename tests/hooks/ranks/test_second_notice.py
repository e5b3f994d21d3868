"""A second machine is noticed, while all save for the first one or when they have: who was to stay goes too."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from spotguard.hooks.ipc import protocol
from tests.fakes.agent import FakeAgent
from tests.fakes.clock import ManualClock
from tests.hooks.ranks.checking import marked, restores, saved_together
from tests.hooks.ranks.gang import Gang, event, fate, signs, until
from tests.hooks.ranks.machines import Machine
from tests.tiers import few_fast

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

#: Each rank is on a machine of its own.
WORLD = 3
#: Where an agent's own clock begins: before that of its ranks, the system's, on a machine that has just booted too.
BEHIND = -3600.0


@contextmanager
def held_in_the_save(
    gang: Gang,
    world: int,
    way: str,
    folder: Path,
    hold: tuple[int, str],
    *,
    clock: ManualClock | None = None,
    hosted: bool = False,
) -> Iterator[tuple[list[Machine], Path, Path]]:
    """A job whose first rank waits in its step 4 for a notice. In the save that follows one rank is held, at this call.

    Yields:
        the machines, the sign of who is held, and the sign that the second rank has heard of two notices.
    """
    with ExitStack() as stack:
        sign = stack.enter_context(signs(folder))
        machines = [
            stack.enter_context(Machine(folder / f"{rank}.sock", clock=clock)) for rank in range(world)
        ]
        reached, held, twice = sign("reached"), sign("held"), sign("twice")
        gang.begin(
            world,
            way,
            folder / "store",
            event(0, 4, "loading", "reaches", sign=str(reached)),
            event(1, 4, "loading", "hears of", count=2, sign=str(twice)),
            fates=[fate(*hold, sign=held, every=True)],  # a put that lags is sent a second time
            hosted=hosted,
            envs={rank: {"SPOTGUARD_SOCKET": str(each.socket)} for rank, each in enumerate(machines)},
        )
        until(reached.exists)
        yield machines, held, twice


@pytest.mark.parametrize(
    ("way", "call"),
    few_fast(
        [
            ("ddp", "set offer"),
            ("fsdp", r"put .*-of-\d+\.json"),
            ("fsdp", "(hear|claim) decision"),
            ("ddp", "put .*safetensors"),
        ],
        2,
    ),
)
def test_a_machine_that_is_noticed_in_the_save_is_saved_in_its_time(
    gang: Gang, way: str, call: str, folder: Path
) -> None:
    """The first machine's rank is held in its save until all have been called a second time."""
    with held_in_the_save(gang, WORLD, way, folder, (0, call)) as (machines, held, twice):
        machines[0].notice(30.0)
        until(held.exists)
        machines[1].notice(20.0)
        until(twice.exists)
        held.unlink()
        said = gang.ended(range(WORLD))
    assert saved_together(gang, folder / "store", said) == 4
    assert restores(gang, WORLD, way, folder / "store") == 4
    for machine in machines[:2]:
        assert machine.outcomes()[-1]["step"] == 4
        assert machine.outcomes()[-1]["slack"] > 0


@pytest.mark.parametrize(
    ("way", "call"),
    [
        ("ddp", "put .*safetensors"),
        pytest.param("fsdp", r"put .*-of-\d+\.json", marks=pytest.mark.soak),
    ],
)
def test_s16_two_machines_that_are_noticed_40_s_apart_go_with_one_checkpoint(
    gang: Gang, way: str, call: str, folder: Path
) -> None:
    """A rank whose machine stays is slow; when the second notice comes, the first machine has 80 s left of its 120."""
    clock = ManualClock(BEHIND)
    with held_in_the_save(gang, WORLD, way, folder, (2, call), clock=clock) as (machines, held, twice):
        machines[0].notice(120.0)
        until(held.exists)
        clock.advance(40.0)
        assert not machines[0].outcomes()
        machines[1].notice(120.0)
        until(twice.exists)
        held.unlink()
        said = gang.ended(range(WORLD))
    assert saved_together(gang, folder / "store", said) == 4
    assert len(marked(folder / "store")) == 1
    assert restores(gang, WORLD, way, folder / "store") == 4
    for machine, slack in zip(machines[:2], (80.0, 120.0), strict=True):
        (outcome,) = machine.outcomes()[-1:]
        assert outcome["step"] == 4
        assert outcome["slack"] == pytest.approx(slack)
        assert outcome["ended"] == "all processes were asked to leave"


def test_a_machine_that_is_noticed_before_it_has_seen_the_commit_of_another_one_hears_of_it(
    gang: Gang, folder: Path
) -> None:
    """Its manifest is there, and its first look at the others' does not return. The other one has marked it, and is gone."""
    look = (1, "(get|read_into) .*/0*4-")
    with held_in_the_save(gang, 2, "fsdp", folder, look, hosted=True) as (machines, held, twice):
        machines[0].notice(30.0)
        until(lambda: held.exists() and bool(machines[0].outcomes()))
        assert machines[0].outcomes()[0]["step"] == 4
        gang.end([0])
        machines[1].notice(6.0)
        until(twice.exists)
        held.unlink()
        said = gang.survivors(2)
    assert said[1]["last"] == 4
    assert len(marked(folder / "store")) == 1
    assert restores(gang, 2, "fsdp", folder / "store") == 4
    assert machines[1].outcomes()[-1]["step"] == 4


@contextmanager
def agents(folder: Path, count: int) -> Iterator[list[FakeAgent]]:
    """Who tells nobody to leave: as long as the command is ended, which may take its time."""
    with ExitStack() as stack:
        yield [stack.enter_context(FakeAgent(folder / f"{number}.sock")) for number in range(count)]


def notice(id: str, seconds: float) -> protocol.Preempt:
    return protocol.Preempt(id, seconds, 0.5, "preempt", "a test")


def answer(agent: FakeAgent, id: str) -> protocol.Committed | protocol.Failed:
    """To this notice."""
    while True:
        told = agent.hear(protocol.Message)
        if isinstance(told, protocol.Committed | protocol.Failed) and told.id == id:
            return told


@pytest.mark.parametrize(
    "first", few_fast(["is there", "is gone", "is gone, and the job's store with it"], 2)
)
@pytest.mark.parametrize("way", few_fast(["fsdp", "ddp"]))
def test_a_machine_that_is_noticed_after_the_commit_has_nothing_to_lose(
    gang: Gang, way: str, first: str, folder: Path
) -> None:
    with agents(folder, 2) as both, signs(folder) as sign:
        reached = sign("reached")
        gang.begin(
            2,
            way,
            folder / "store",
            event(0, 4, "loading", "reaches", sign=str(reached)),
            hosted="store" not in first,
            envs={rank: {"SPOTGUARD_SOCKET": str(folder / f"{rank}.sock")} for rank in range(2)},
        )
        for each in both:
            each.welcome()
        until(reached.exists)
        both[0].say(notice("n1", 20.0))
        step = both[0].hear(protocol.Committed).step
        assert both[1].hear(protocol.Committed).step == step
        if first != "is there":
            os.kill(gang.pid(0), signal.SIGKILL)
        both[1].say(notice("n2", 3.0))
        told = answer(both[1], "n2")
        assert isinstance(told, protocol.Committed), f"{told}\n{gang.errors()}"
        assert told.step == step
        for each in both if first == "is there" else both[1:]:
            each.say(protocol.Leave("n2", 75))
        said = gang.survivors(2)
    if (
        first == "is there"
    ):  # else one may be in a collective that its peer has left: docs/how-to/several-ranks.md
        assert [each["ended"] for each in said.values()] == ["preempted"] * len(said), gang.errors()
    assert marked(folder / "store")
    assert restores(gang, 2, way, folder / "store") == step
