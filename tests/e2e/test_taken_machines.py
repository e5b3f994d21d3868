"""Machines of one sharded job are taken away: nothing is lost, and those that stay go on at once."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.machines import Rack
from tests.e2e.processes import eventually
from tests.e2e.sharded import Sharded

pytest.importorskip("torch")

#: Three launchers and their ranks import torch one beside the other, twice.
pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.slow]


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    with Rack(tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("apart", "last"),
    [
        pytest.param(False, False, id="where-they-met"),  # and rank 0 with the store of the job
        pytest.param(True, False, id="rank-0", marks=pytest.mark.soak),
        pytest.param(False, True, id="another", marks=pytest.mark.soak),
    ],
)
def test_a_machine_goes_and_the_others_go_on_at_once(rack: Rack, apart: bool, last: bool) -> None:
    """One of three is noticed, leaves with 75, and is gone. The two others save with it, start their launchers again by
    themselves, meet anew, and train on in a world of two."""
    job = Sharded(rack, "2:3", apart=apart)
    nodes = [rack.add() for _ in range(3)]
    job.begin(*nodes)
    first = job.world(*nodes)
    assert job.restored(first) == 0
    job.allow(5)
    job.stepped(first, 5)

    going = nodes[-1] if last else first
    going.preempt(60)
    assert job.runs[going].ended() == 75
    going.take()
    assert going.outcome()["step"] == 5
    staying = [node for node in nodes if node is not going]
    first = job.world(*staying)
    assert job.restored(first) == 5
    for node in staying:  # told by the other ranks, and committed with them
        outcome = node.outcome()
        assert (outcome["kind"], outcome["step"], outcome["why"]) == ("peer", 5, "")
    job.allow(8)
    job.stepped(first, 8)
    job.as_if_alone()


@pytest.mark.soak
def test_all_machines_are_noticed_in_the_same_second(rack: Rack) -> None:
    """AWS makes a notice's id of its time, so they have equal ones. All save the step, and all leave. One new machine goes on."""
    job = Sharded(rack, "1:2")
    nodes = [rack.add(), rack.add()]
    job.begin(*nodes)
    first = job.world(*nodes)
    assert job.restored(first) == 0
    job.allow(5)
    job.stepped(first, 5)
    for node in nodes:
        node.preempt(60)
    assert [job.runs[node].ended() for node in nodes] == [75, 75]
    assert [node.outcome()["kind"] for node in nodes] == ["terminate", "terminate"]
    assert [node.outcome()["step"] for node in nodes] == [5, 5]
    for node in nodes:
        node.take()

    new = rack.add()
    job.meet_on(new)
    job.begin(new)
    assert job.world(new) == new
    assert job.restored(new) == 5
    job.allow(8)
    job.stepped(new, 8)
    job.as_if_alone()


@pytest.mark.soak
def test_a_machine_that_comes_joins(rack: Rack) -> None:
    """Two machines train; torchrun starts their ranks anew when a third one comes, from the newest checkpoint. (The first whose
    ranks it ends breaks the others' collective, so each torchrun has to have a restart left.)"""
    job = Sharded(rack, "2:3", restarts=3)
    nodes = [rack.add(), rack.add()]
    job.begin(*nodes, options="--every 1")
    job.world(*nodes)
    job.allow(100_000)
    eventually(job.committed, "a checkpoint beside training")
    nodes.append(rack.add())
    job.begin(nodes[-1], options="--every off")
    first = job.world(*nodes)
    done = job.restored(first)
    assert done > 0
    job.stepped(first, done + 3)
    job.as_if_alone()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_three_machines_become_two_and_then_four(rack: Rack) -> None:
    """`--nnodes 2:4 --nproc-per-node 2`. The machine on which they met goes while they train; two more come to the two that
    stay."""
    job = Sharded(rack, "2:4", ranks=2, restarts=3)
    nodes = [rack.add() for _ in range(3)]
    job.begin(*nodes, options="--every 2")
    going = job.world(*nodes)
    job.allow(100_000)
    job.stepped(going, 5)
    going.preempt(60)
    assert job.runs[going].ended() == 75
    going.take()
    nodes.remove(going)
    first = job.world(*nodes)
    assert job.restored(first) == going.outcome()["step"]
    before = len(job.committed())
    eventually(lambda: len(job.committed()) > before, "a checkpoint beside training")

    job.meet_on(first)
    more = [rack.add(), rack.add()]
    job.begin(*more, options="--every 2")
    first = job.world(*nodes, *more)
    done = job.restored(first)
    assert done > going.outcome()["step"]
    job.stepped(first, done + 3)
    job.as_if_alone()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(6))
def test_a_machine_that_is_gone_in_mid_save_takes_nothing_with_it(rack: Rack, seed: int) -> None:
    """Noticed, and gone without a word, up to a third of a second after the others have heard of it. The two go on, from the step that
    all saved or from the checkpoint before. (Gone before that it went without a notice: TCP has to give up first.)"""
    dice = random.Random(seed)
    job = Sharded(rack, "2:3", apart=True)
    nodes = [rack.add() for _ in range(3)]
    job.begin(*nodes, options="--every 1")
    job.world(*nodes)
    job.allow(100_000)
    eventually(job.committed, "a checkpoint beside training")
    going = dice.choice(nodes)
    staying = [node for node in nodes if node is not going]
    going.preempt(5)
    for node in staying:
        job.runs[node].err.until("another machine of this job was noticed: ")
    threading.Event().wait(dice.uniform(0.0, 0.3))  # the instant at which it goes is what is tried
    going.take()
    first = job.world(*staying)
    done = job.restored(first)
    assert done >= 1
    job.stepped(first, done + 3)
    job.as_if_alone()
