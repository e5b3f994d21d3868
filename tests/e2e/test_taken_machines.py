"""Machines of one sharded job are taken away: nothing is lost, and those that stay go on at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.machines import Rack
from tests.e2e.sharded import Sharded

pytestmark = [pytest.mark.torch, pytest.mark.wholepath]


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    with Rack(tmp_path) as made:
        yield made


def test_those_that_stay_go_on_from_the_step_that_all_have_saved(rack: Rack) -> None:
    """Three machines, a notice on the last. It leaves with 75 and is gone; the two others save with it, start their
    launchers again by themselves, and train on in a world of two."""
    nodes = [rack.add() for _ in range(3)]
    going, *staying = reversed(nodes)
    job = Sharded(rack, "2:3")
    job.begin(*nodes)
    first = job.world(*nodes)
    assert job.restored(first) == 0
    job.allow(5)
    job.stepped(first, 5)

    going.preempt(60)
    assert job.runs[going].ended() == 75
    going.take()
    assert going.outcome()["step"] == 5
    first = job.world(*staying)
    assert job.restored(first) == 5
    for node in staying:
        outcome = node.outcome()
        assert (outcome["kind"], outcome["step"], outcome["why"]) == ("peer", 5, "")
    job.allow(8)
    job.stepped(first, 8)
    job.as_if_alone()
