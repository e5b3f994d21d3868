"""A poisoned batch in a real training: what its checkpoints are marked with, what `--keep` leaves, and the way back."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import Machine
from tests.e2e.processes import eventually
from tests.tiers import with_nights

pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.slow]

POISONED = str(Path(__file__).parent / "programs" / "poisoned.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]


def listed(machine: Machine) -> dict[int, str]:
    """Why each complete checkpoint is suspect, by its step, oldest first."""
    words = [sys.executable, "-m", "spotguard", "ls", machine.url, "--json"]
    out = subprocess.run(words, env=machine.env, check=True, capture_output=True, text=True).stdout
    found = reversed(json.loads(out)["checkpoints"])
    return {each["step"]: each["suspect"] for each in found if each["status"] == "complete"}


@pytest.mark.parametrize("dtype", with_nights(["float32", "bfloat16"], ["bfloat16"]))
def test_a_poisoned_batch_costs_no_good_checkpoint(machine: Machine, dtype: str) -> None:
    """Without a scaler the weights are NaN from that step on, for as long as training goes on. The way back is a step."""
    command = [sys.executable, POISONED, "60", dtype]
    run = machine.run("--every off --keep 2", *command, "13")
    assert run.ended() == 0
    run.out.until("^rank 0 is poisoned at step 60$")
    run.err.until("the loss is nan since step 13: checkpoints are suspect from now on")
    why = "the loss is nan since step 13"
    assert listed(machine) == {5: "", 10: "", 55: why, 60: why}

    again = machine.run("--every off --keep 2", *command[:2], "65", dtype, "0")
    assert again.ended() == 0
    again.err.until(f"step 60 is restored although it is suspect: {why}")
    again.out.until("^rank 0 is poisoned at step 65$")
    assert [*listed(machine)] == [5, 10, 60, 65]

    back = machine.run("--every off --keep 2", *command[:2], "40", dtype, "0", "10")
    assert back.ended() == 0
    back.out.until("^rank 0 is finite at step 40$")
    assert "suspect" not in back.err.text
    assert listed(machine) == {35: "", 40: ""}


def test_one_of_two_ranks_makes_the_checkpoint_of_both_suspect(machine: Machine) -> None:
    """The other rank has seen nothing but normal losses."""
    run = machine.run("--every off --keep 2", *TORCHRUN, POISONED, "40", "float32", "13")
    assert run.ended() == 0
    why = "the loss is nan since step 13"
    run.err.until(rf"rank 1\]: {why} on rank 1: checkpoints are suspect from now on")
    ranks = {run.out.until(r"^rank (\d is \w+) at step 40$")[1] for _ in range(2)}
    assert ranks == {"0 is finite", "1 is poisoned"}
    assert listed(machine) == {5: "", 10: "", 35: f"{why} on rank 1", 40: f"{why} on rank 1"}
    assert not [line for line in run.err.text.splitlines() if "suspect" in line and "rank 0]" in line]


def test_the_status_shows_the_suspicion_and_a_notice_saves_it(machine: Machine) -> None:
    run = machine.run("--every off", sys.executable, POISONED, "9", "float32", "8", POISONED_WAITS="1")
    run.out.until("^rank 0 is poisoned at step 9$")
    why = "the loss is nan since step 8"
    eventually(lambda: machine.status()["sessions"][0]["suspect"] == why, "the status")
    (session,) = machine.status()["sessions"]
    assert (session["loss"], session["bad_loss_steps"]) == ("nan", 2)
    assert session["metrics"] == {"validation_loss": "nan"}
    run.send(signal.SIGTERM)
    assert run.ended() == 75
    assert listed(machine) == {5: "", 9: why}
    (outcome,) = machine.outcomes_in_store()
    assert (outcome["committed"], outcome["step"], outcome["suspect"]) == (True, 9, why)
