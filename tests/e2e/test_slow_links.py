"""Machines with slow wires to a store: one is noticed, and gone before the others have saved; two are, 40 s apart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.far_store import FarStore
from tests.e2e.machines import Node, Rack
from tests.e2e.processes import eventually
from tests.e2e.sharded import Sharded

pytest.importorskip("torch")

#: Launchers and their ranks import torch one beside the other, and 40 s go by in one test.
pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.soak]

#: The state of a job that is so wide, in bytes.
WIDTH, STATE = 1000, 12_000_000
#: Of what one rank has alone: its random numbers.
OWN = 100_000


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    with Rack(tmp_path) as made:
        yield made


@pytest.fixture
def wide(rack: Rack, require_server: Callable[[str], str]) -> tuple[Sharded, FarStore]:
    """Three machines that hold everything alike, at step 5, and their store."""
    job = Sharded(rack, "1:3", width=WIDTH)
    nodes = [rack.add() for _ in range(3)]
    store = FarStore(rack, require_server)
    store.serve(*nodes)
    job.begin(*nodes)
    first = job.world(*nodes)
    assert job.restored(first) == 0
    job.allow(5)
    job.stepped(first, 5)
    return job, store


def manifest(rank: int) -> str:
    return f"{rank:05}-of-00003.json"


def goes_on(job: Sharded, *staying: Node) -> None:
    """From step 5, by themselves, as if nothing had been."""
    first = job.world(*staying)
    assert job.restored(first) == 5
    job.allow(8)
    job.stepped(first, 8)
    job.as_if_alone()


def test_a_machine_with_a_slow_link_writes_only_what_nobody_else_has(wide: tuple[Sharded, FarStore]) -> None:
    """It holds rank 0, and so the job's store. Its third of the state would take it 32 s; it has its own part there, and is gone, when
    the others have hardly begun with all the rest. They commit without it, and go on."""
    job, store = wide
    going, *staying = (job.places[rank] for rank in range(3))
    going.shape(1)
    for node in staying:
        node.shape(2)
    going.preempt(60)
    eventually(lambda: manifest(0) in store.keys(5), "the manifest of the machine that goes")
    going.take()
    there = store.keys(5)
    assert not {manifest(1), manifest(2), "COMMIT.json"} & set(there), there
    for node in staying:
        node.shape(None)

    goes_on(job, *staying)
    for node in staying:
        outcome = node.outcome()
        assert (outcome["kind"], outcome["step"], outcome["why"]) == ("peer", 5, "")
    assert "COMMIT.json" in store.keys(5)
    own, *shares = store.shares(5)
    assert own < OWN
    assert STATE < sum(shares) < STATE + 3 * OWN
    assert min(shares) > STATE / 3


@pytest.mark.parametrize("saving", [True, False], ids=["in-the-save", "after-the-start"])
def test_s16_two_machines_are_noticed_40_s_apart(wide: tuple[Sharded, FarStore], saving: bool) -> None:
    """The first is where they met, and the second where the others are to meet instead: told while it still saves for the first,
    or when it trains again without it. The third does all that is left to do, and goes on alone."""
    job, store = wide
    ranks = {node: rank for rank, node in job.places.items()}
    first = next(node for node in ranks if node.name == "node1")
    second, third = sorted({*ranks} - {first}, key=ranks.__getitem__)
    if saving:
        for node in (second, third):
            node.shape(0.5)
    first.preempt(120)
    if not saving:
        assert job.runs[first].ended() == 75
        first.take()
        assert job.restored(job.world(second, third)) == 5
        assert f"it is on {second.address} from now on" in job.runs[third].err.text
    threading.Event().wait(40)  # what lies between the two is what is tried
    assert ("COMMIT.json" in store.keys(5)) is not saving
    second.preempt(120)
    if saving:
        third.shape(None)
        assert job.runs[first].ended() == 75
    assert job.runs[second].ended(110) == 75
    for node in (first, second):
        outcome = node.outcome()
        assert (outcome["kind"], outcome["step"], outcome["why"]) == ("terminate", 5, "")
    if saving:
        first.take()
    second.take()

    goes_on(job, third)
    outcome = third.outcome()
    assert (outcome["kind"], outcome["step"], outcome["why"]) == ("peer", 5, "")
    if saving:  # by the plan of the second notice, but for what was there
        shares = store.shares(5)
        assert STATE < sum(shares) < STATE + 3 * OWN
        assert shares[ranks[first]] < OWN
        assert shares[ranks[second]] < STATE / 3 < shares[ranks[third]]
