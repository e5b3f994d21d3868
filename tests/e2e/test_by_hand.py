"""Ranks that no torchrun has started: one process on each machine, and those that a script spawns by itself."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import Machine
from tests.e2e.machines import Node, Rack
from tests.e2e.processes import Running

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.soak]

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    with Rack(tmp_path) as made:
        yield made


def restored(running: Running) -> tuple[int, str]:
    """The step at which rank 0 stands, and the digest of its state."""
    said = running.out.until(r"^restored (\d+) (\w+)$")
    return int(said[1]), said[2]


def test_one_process_on_each_machine_and_one_of_them_is_replaced(rack: Rack) -> None:
    """The one that stays is started again at once, without charge, and waits for the new one: it has the same numbers."""
    limit = rack.folder / "limit"
    limit.write_text("3")

    def begin(node: Node, rank: int) -> Running:
        where = {"RANK": f"{rank}", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
        words = (sys.executable, str(PROGRAMS / "sharded.py"), "100000", str(limit))
        return node.guarded("--every off", *words, **where)

    first, second = rack.add(), rack.add()
    staying, going = begin(first, 0), begin(second, 1)
    assert restored(staying)[0] == 0
    digest = staying.out.until(r"^step 3 [\d.]+ (\w+)$")[1]
    second.preempt(60)
    assert going.ended() == 75
    second.take()
    staying.err.until("starting the command again: another machine of the job was noticed")
    outcome = first.outcome()
    assert (outcome["kind"], outcome["step"], outcome["code"], outcome["why"]) == ("peer", 3, None, "")

    limit.write_text("5")
    begin(rack.add(), 1)
    assert restored(staying) == (3, digest)
    staying.out.until("^step 5 ")
    assert staying.running


def test_ranks_that_a_script_has_spawned_save_and_are_started_again_with_it(machine: Machine) -> None:
    limit = machine.folder / "limit"
    limit.write_text("3")

    def begin() -> Running:
        return machine.run(
            "--every off --window 20", sys.executable, str(PROGRAMS / "spawned.py"), "5", str(limit)
        )

    running = begin()
    assert restored(running)[0] == 0
    digest = running.out.until(r"^step 3 [\d.]+ (\w+)$")[1]
    running.send(signal.SIGTERM)
    assert running.ended() == 75
    outcome = machine.outcome()
    assert (outcome["step"], outcome["why"]) == (3, "")
    assert not list(machine._mine())

    limit.write_text("5")
    again = begin()
    assert restored(again) == (3, digest)
    again.out.until("^done$")
    assert again.ended() == 0
