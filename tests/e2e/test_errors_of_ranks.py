"""One of two replicas below torchrun meets an error: the other one saves with it, and the run names the first cause."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pytest

from spotguard.providers.stores.factory import open_store
from spotguard.report.reading import read_run
from spotguard.report.reckoning import reckon
from tests.e2e.harness import Machine
from tests.e2e.processes import Running
from tests.tiers import with_nights

pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.slow]

ERRING = str(Path(__file__).parent / "programs" / "erring.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
STEPS, AT = 9, 4


def life(machine: Machine, how: str) -> Running:
    return machine.run("--every off", *TORCHRUN, ERRING, str(STEPS), how, str(AT))


def committed(machine: Machine) -> list[int]:
    markers = (machine.store / "job" / "checkpoints").glob("*/COMMIT.json")
    return [int(marker.parent.name[:9]) for marker in markers]


def records(machine: Machine) -> dict[int, str]:
    """The class of each rank's error, as the store has it."""
    found = (machine.store / "job" / "failures").glob("0001-*.json")
    return {(kept := json.loads(path.read_text()))["rank"]: kept["kind"] for path in found}


def test_all_ranks_commit_the_step_at_which_one_meets_an_error(machine: Machine) -> None:
    run = life(machine, "data")
    assert run.ended() == 1
    run.err.until(rf"COMMITTED step {AT} in .* 2 of 2 ranks, .* the failed rank ends")
    run.err.until(
        rf"training failed: rank 1 \(pid \d+\) at step {AT}: an error of the program .*no such sample"
    )
    assert committed(machine) == [AT]
    assert records(machine)[1] == "program"
    again = life(machine, "")
    assert {again.out.until(rf"^(rank [01]) at step {AT}, again$")[1] for _ in range(2)} == {
        "rank 0",
        "rank 1",
    }
    assert again.ended() == 0


def test_a_rank_behind_the_others_does_not_keep_them_from_saving(machine: Machine) -> None:
    """The other rank has stepped, and the failed one never will."""
    run = life(machine, "late")
    assert run.ended() == 1
    run.err.until(r"rank 1\]: step 4 is not saved")
    # torchrun's SIGTERM is a notice of its own: if it comes in time, the part without rank 1 is saved once more.
    assert set(committed(machine)) == {AT + 1}


@pytest.mark.parametrize("how", with_nights(["nan", "sleep"], ["sleep"]))
def test_nobody_saves_values_that_one_rank_distrusts(machine: Machine, how: str) -> None:
    run = life(machine, how)
    assert run.ended() == 1
    run.err.until(rf"training failed: rank 1 \(pid \d+\) at step {AT}: a value is not finite")
    assert committed(machine) == []
    assert records(machine)[1] == "nan"


def test_the_rank_that_was_killed_is_the_cause(machine: Machine) -> None:
    run = life(machine, "kill")
    assert run.ended() == 1
    run.err.until(r"training failed: rank 1 \(pid \d+\).*its process vanished")
    assert committed(machine) == [AT]
    assert records(machine)[1] == "killed"


@pytest.mark.parametrize("restarts", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_ranks_that_stand_for_good_start_again_at_the_same_step(machine: Machine, restarts: int) -> None:
    """By spotguard; or by torchrun, which owns the restarts if it may make any: then only the cause is killed."""
    launcher = [*TORCHRUN[:-1], f"--max-restarts={restarts}", TORCHRUN[-1]]
    run = machine.run(
        "--every off --stall-first 4 --recover stall=restart:1", *launcher, ERRING, "9", "hang", str(AT)
    )
    run.err.until(rf"COMMITTED step {AT} in .* 2 of 2 ranks, .* --recover stall=restart follows")
    run.err.until(r"training is still stuck: rank 1 \(pid \d+\) .* restart 1 of 1 for stall")
    run.err.until("so that its launcher starts the ranks again" if restarts else "starting the command again")
    again = {run.out.until(rf"^(rank [01]) at step {AT}, again$")[1] for _ in range(2)}
    assert again == {"rank 0", "rank 1"}
    assert run.ended() == 0
    assert AT in committed(machine)
    report = reckon(read_run(open_store(machine.store.as_uri()), "job", time.time()))
    first, second = report.attempts
    cause = (
        r"rank 1 \(pid \d+\) was killed, so that its launcher" if restarts else "was ended so that it starts"
    )
    assert re.search(cause, first.cause), first
    assert (first.end, first.last, first.lost, second.first, second.end) == ("error", AT, 0, AT, "ended")
    assert first.again is not None


def test_a_rank_that_hangs_behind_the_others_does_not_keep_them_from_saving(machine: Machine) -> None:
    """The other rank has stepped, and waits in the next step. It saves at once, and the restart resumes there."""
    options = "--every off --stall-first 4 --recover stall=restart:1"
    run = machine.run(options, *TORCHRUN, ERRING, str(STEPS), "behind", str(AT))
    run.err.until(
        rf"will not commit: the other ranks save step {AT + 1} without this rank, which stands at step {AT}"
    )
    run.err.until("starting the command again")
    assert set(committed(machine)) == {AT + 1}
    assert run.ended() == 0
    assert STEPS in committed(machine)
