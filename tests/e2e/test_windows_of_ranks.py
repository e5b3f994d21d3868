"""Several ranks below torchrun, and a store that holds their puts: a window too short for the save, and a save that takes longer
than torchrun waits."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from spotguard.hooks.checkpoint.catalog import find_whole
from spotguard.hooks.restore.reads.verify import verify
from tests.e2e.clouds import Day, InCloud, begin_day, puts
from tests.e2e.harness import in_order
from tests.e2e.lives import Drill
from tests.e2e.processes import Running, eventually
from tests.fixtures_servers import FaultsBefore
from tests.servers.faultplan import Asked, Fault

pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.slow]

PROGRAM = str(Path(__file__).parent / "programs" / "sharded.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]


@pytest.fixture
def day(request: pytest.FixtureRequest, faults_before: FaultsBefore) -> Day:
    return begin_day("s3", request, faults_before)


@pytest.fixture
def machine(tmp_path: Path, day: Day) -> Iterator[InCloud]:
    made = InCloud(tmp_path, day)
    yield made
    made.close()


class Ranks:
    """Two of them, as one run, with a checkpoint of step 3 and standing at step 5."""

    def __init__(self, machine: InCloud, day: Day, run_id: str, options: str, **env: str) -> None:
        self.machine, self.day, self.run_id = machine, day, run_id
        limit = machine.folder / f"{run_id}-limit"
        limit.write_text("3")
        words = f"--run-id {run_id} --every off {options}"
        self.run: Running = machine.run(words, *TORCHRUN, PROGRAM, "100", str(limit), aws=None, **env)
        self.run.out.until("^step 3 ")
        drill = Drill(machine.socket(run_id))
        drill.join()
        assert self.committed() == [3], drill.bodies
        limit.write_text("5")
        self.run.out.until("^step 5 ")

    def hold(self, which: Callable[[Asked], bool]) -> None:
        """From here on these puts of this run stand still."""
        mine = f"/{self.run_id}/"
        self.day.network.inject(
            Fault("stall", matching=lambda asked: puts(asked) and mine in asked.path and which(asked))
        )

    def noticed(self) -> None:
        self.run.send(signal.SIGTERM)
        self.run.err.until("notice from SIGTERM")

    def launcher(self) -> int:
        """The pid of torchrun, which `run` started."""
        (pid,) = {_parent(each) for each in self.workers()}
        return pid

    def workers(self) -> list[int]:
        return [each["pid"] for each in self.machine.status(self.run_id)["sessions"]]

    def committed(self) -> list[int]:
        """The steps whose checkpoints have a marker."""
        found = (name.split("/") for name in self.day.names())
        marked = (parts[-2] for parts in found if parts[-1] == "COMMIT.json" and self.run_id in parts)
        return sorted(step for _, step, _ in in_order(marked))

    def only_the_first_is_there(self) -> None:
        assert self.committed() == [3]
        whole = find_whole(self.day.behind, self.run_id)
        assert whole is not None
        assert (whole.name.step, verify(self.day.behind, whole)) == (3, [])


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_window_that_is_too_short_for_one_rank_leaves_the_checkpoint_before(
    machine: InCloud, day: Day
) -> None:
    """One has all of its part in the store, and the other none. Nothing new is whole, all are out before the reserve is over, and
    `run` ends with 75."""
    ranks = Ranks(machine, day, "job", "--window 6 --reserve 2")
    ranks.hold(lambda asked: "/00001-of-00002" in asked.path)
    ranks.noticed()
    assert ranks.run.ended() == 75
    outcome = machine.outcome()
    print(outcome)
    assert (outcome["committed"], outcome["code"]) == (None, 75)
    assert not list(machine._mine())
    there = [name for name in day.names() if "/000000005-" in name]
    assert any(name.endswith("/00000-of-00002.json") for name in there), there
    assert not any("/00001-of-00002" in name for name in there), there
    ranks.only_the_first_is_there()
    day.network.heal()
    assert day.network.wait_for_rest()
    ranks.only_the_first_is_there()


@pytest.mark.soak
def test_torchrun_waits_for_a_save_as_long_as_it_takes(machine: InCloud, day: Day) -> None:
    """It has got SIGTERM, or lost its rendezvous, in mid-save. A torchrun that was told otherwise, or is of before March 2026, is
    the clock here: it kills its workers after 30 s, and what they saved is lost. Ours still save by then, and commit."""
    ranks = Ranks(machine, day, "ours", "--window 300")
    others = Ranks(machine, day, "theirs", "--window 300", TORCH_ELASTIC_SHUTDOWN_TIMEOUT="30")
    for each in (ranks, others):
        each.hold(lambda asked: True)
        each.noticed()
    assert day.network.wait_for_stalled(4)
    for each in (ranks, others):
        os.kill(each.launcher(), signal.SIGTERM)
    assert others.run.ended() == 75
    outcome = machine.outcome("theirs")
    print(outcome)
    assert outcome["committed"] is None
    assert ranks.run.running
    assert len(ranks.workers()) == 2
    assert machine.status("ours")["phase"] == "saving"

    day.network.heal()
    assert ranks.run.ended() == 75
    outcome = machine.outcome("ours")
    print(outcome)
    assert (outcome["step"], outcome["why"], outcome["code"]) == (5, "", 75)
    assert ranks.committed() == [3, 5]
    others.only_the_first_is_there()
    eventually(lambda: not list(machine._mine()), "processes were left behind")
