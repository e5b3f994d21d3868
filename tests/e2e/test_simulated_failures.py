"""`spotguard simulate failure CLASS`: the failure arises in an unchanged script, and the run puts it down to that class."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spotguard.hooks.ipc.failure_classes import CLASSES
from spotguard.hooks.recorder.failure_plan import KINDS
from tests.e2e.harness import Machine
from tests.e2e.processes import Running

pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.slow]

FITTING = str(Path(__file__).parent / "programs" / "fitting.py")


def simulated(machine: Machine, kind: str, *more: str, options: str = "--every off") -> Running:
    run = f"{sys.executable} -m spotguard run --run-id job --store {machine.url} --provider none {options}".split()
    command = ("--at-step", "5", *more, "--", *run, "--", sys.executable, FITTING)
    return machine.spotguard("simulate", "failure", kind, *command, TMPDIR=str(machine.runtime))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "stall"])
def test_a_failure_is_named_and_saved_as_its_class_is(machine: Machine, kind: str) -> None:
    if kind == "host-memory":
        machine.limit_memory(640 << 20)
    run = simulated(machine, kind)
    assert run.ended() != 0
    what = "SIGKILL, and not by spotguard" if kind == "killed" else CLASSES[kind].says
    run.err.until(f"ERROR: training failed: .*{what}")
    here = kind in CLASSES and CLASSES[kind].commits and kind != "host-memory"  # those processes are killed
    steps = [step for _, step, _ in machine.committed("job-simulated")]
    assert (len(steps), all(step >= 5 for step in steps)) == (int(here), True)
    assert list(machine.runtime.glob("spotguard-simulated-*")) == []


@pytest.mark.parametrize("place", ["data", "forward", "backward", "optimizer"])
def test_a_stall_is_committed_wherever_it_stands(machine: Machine, place: str) -> None:
    """Behind the optimizer's step nothing stands whole; right before it, the last step does."""
    run = simulated(
        machine, "stall", "--in", place, options="--every off --stall-first 3 --recover stall=restart"
    )
    run.err.until("no progress of the run for .* COMMITTED .* training continues")
    ((_, step, _),) = machine.committed("job-simulated")
    run.err.until("starting the command again: training stood still, restart 1 of 3 for stall")
    run.err.until(f"continues at step {step} of run job-simulated")
    assert run.ended() == 0


def test_a_failure_that_did_not_happen_is_said(machine: Machine) -> None:
    run = simulated(machine, "program", "--rank", "3")
    assert run.ended() == 4
    run.err.until("program did not happen, so nothing is shown: rank 3 did not come to step 5")
    assert [step for _, step, _ in machine.committed("job-simulated")] == [40]


def test_a_poisoned_batch_is_skipped(machine: Machine) -> None:
    run = simulated(machine, "nan", options="--every off --recover nan=back")
    run.err.until("starting the command again: it crashed with 1, back 1 of 3 for nan")
    run.err.until(r"values were not finite behind the data of the next \d+ steps")
    assert run.ended() == 0
