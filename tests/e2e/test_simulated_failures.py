"""`spotguard simulate failure CLASS`: the failure arises in an unchanged script, and the run puts it down to that class."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from spotguard.hooks.ipc.failure_classes import CLASSES
from spotguard.hooks.recorder.failure_plan import KINDS, LASTING
from tests.e2e.harness import Machine
from tests.e2e.processes import Running
from tests.tiers import with_nights

pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.slow]

PROGRAMS = Path(__file__).parent / "programs"
FITTING = str(PROGRAMS / "fitting.py")


def simulated(machine: Machine, kind: str, *more: str, options: str = "--every off") -> Running:
    run = f"{sys.executable} -m spotguard run --run-id job --store {machine.url} --provider none {options}".split()
    command = ("--at-step", "5", *more, "--", *run, "--", sys.executable, FITTING)
    return machine.spotguard("simulate", "failure", kind, *command, TMPDIR=str(machine.runtime))


def whole(machine: Machine) -> list[int]:
    """The steps of the checkpoints that several ranks have committed."""
    markers = machine.store.glob("job-simulated/checkpoints/*/COMMIT.json")
    return [int(marker.parent.name[:9]) for marker in markers]


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - LASTING - {"stall", "memory-kill"}))
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


@pytest.mark.parametrize(
    "place", with_nights(["data", "forward", "backward", "optimizer"], ["data", "forward", "backward"])
)
def test_a_stall_is_committed_wherever_it_stands(machine: Machine, place: str) -> None:
    """Behind the optimizer's step nothing stands whole; right before it, the last step does."""
    run = simulated(
        machine, "stall", "--in", place, options="--every off --stall-first 3 --recover stall=restart"
    )
    run.err.until("no progress of the run for .* COMMITTED .* --recover stall=restart follows")
    ((_, step, _),) = machine.committed("job-simulated")
    run.err.until("starting the command again: training stood still, restart 1 of 3 for stall")
    run.err.until(f"continues at step {step} of run job-simulated")
    assert run.ended() == 0


def test_one_stopped_rank_of_two_is_named_and_no_stall(machine: Machine) -> None:
    """The limit is 3 s, and the stop lasts for 25: were it counted, it would be a stall."""
    run = [sys.executable, "-m", "spotguard", "run", "--run-id", "job", "--store", machine.url]
    options = ["--provider", "none", "--every", "off", "--stall-first", "3", "--recover", "stall=stop"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    plan = ("--rank", "1", "--at-step", "5", "--for", "25", "--")
    job = [*launcher, str(PROGRAMS / "erring.py"), "40", "none", "5"]
    words = ("simulate", "failure", "stopped", *plan, *run, *options, "--", *job)
    simulates = machine.spotguard(*words, TMPDIR=str(machine.runtime))
    simulates.err.until(r"^spotguard: stopped begins, for 25 s$")
    stopped = simulates.err.until(r"WARNING: rank 1 \(pid (\d+)\) is stopped by a signal")
    assert whole(machine) == []
    simulates.err.until(rf"rank 1 \(pid {stopped[1]}\) runs again, ")
    assert simulates.ended() == 0
    assert "\nspotguard: stopped is over\n" in simulates.err.text
    assert "stands still" not in simulates.err.text
    assert whole(machine) == [40]  # the script's own


def test_a_kill_for_memory_has_the_kernel_s_word_in_incident_and_record(machine: Machine) -> None:
    run = simulated(machine, "memory-kill", options="--every off --on-failure cat")
    run.err.until("WARNING: incident memory-kill: the kernel killed a process for memory: oom-kill:")
    assert run.ended() == 137
    (path,) = machine.store.glob("job-simulated/failures/*.json")
    record = json.loads(path.read_text())
    assert (record["kind"], record["confidence"], record["by"]) == ("host-memory", "high", "agent")
    assert any("Out of memory: Killed process" in each for each in record["evidence"])
    assert machine.committed("job-simulated") == []


def test_a_kill_for_memory_that_only_the_log_tells_follows_the_rule_of_its_class(machine: Machine) -> None:
    """Without a helper of alerts, too."""
    run = simulated(machine, "memory-kill", options="--every off --recover host-memory=restart,killed=stop")
    run.err.until(
        "ERROR: training failed: .*the machine is out of memory: the kernel killed a process of this job"
    )
    run.err.until("starting the command again: it crashed with 137, restart 1 of 3 for host-memory")
    assert run.ended() == 0


@pytest.mark.parametrize(("kind", "xid"), [("gpu-lost", 79), ("gpu-memory-error", 94)])
def test_a_gpu_in_trouble_is_an_incident_and_a_failure_of_its_class(
    machine: Machine, kind: str, xid: int
) -> None:
    run = simulated(machine, kind, "--for", "5", options="--every off --on-failure cat")
    run.err.until(f"incident gpu-error: .* Xid {xid} ")
    run.err.until("ERROR: training failed: .*the GPU or its driver reports an error")
    assert run.ended() == 1
    assert machine.committed("job-simulated") == []  # its memory may be wrong
    (path,) = machine.store.glob("job-simulated/failures/*.json")
    assert json.loads(path.read_text())["kind"] == "gpu"


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


def test_a_script_that_reads_the_hint_loses_no_second_loader_worker(machine: Machine) -> None:
    """The failure is due twice, but without workers none can die."""
    run = simulated(
        machine, "loader-worker", "--times", "2", options="--every off --recover loader-worker=restart"
    )
    run.err.until("starting the command again: it crashed with 1, restart 1 of 3 for loader-worker")
    assert run.ended() == 0
    assert len(re.findall("ERROR: training failed", run.err.text)) == 1
