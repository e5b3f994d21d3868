"""Compute Engine's metadata server as it behaves in the field, end to end: the training process is told, and saves once.

In the fast tier one test plays what happens in the field; `tests/providers/clouds` has each case.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from spotguard.providers.clouds.gcp.long_poll import HANG
from spotguard.providers.simulator.gcp.service import GcpSimulator
from tests.e2e.harness import Machine
from tests.e2e.processes import TIMEOUT, Running, eventually
from tests.e2e.trainee import Trainee
from tests.fixtures_simulator import SimulateGcp

pytestmark = pytest.mark.wholepath

NOTIFIED = str(Path(__file__).parent / "programs" / "notified.py")
HELD = f"timeout_sec={HANG:.0f}"


def options(gcp: GcpSimulator, more: str = "") -> str:
    return f"--provider gcp --metadata-endpoint {gcp.endpoint} {more}"


def watching(machine: Machine, gcp: GcpSimulator, run_id: str = "job", more: str = "") -> Running:
    """A run that is guarded, and whose agent hangs on the server."""
    running = registered(machine, gcp, run_id, more)
    assert gcp.wait_for_held(timeout=TIMEOUT)
    return running


def registered(machine: Machine, gcp: GcpSimulator, run_id: str = "job", more: str = "") -> Running:
    running = machine.run(options(gcp, f"--run-id {run_id} {more}"), sys.executable, NOTIFIED)
    running.out.until("^ready")
    eventually(lambda: machine.sessions(run_id) == 1, "it has registered")
    return running


def told(running: Running) -> tuple[str, float]:
    """Wait until the hook has the notice, and let it save: the kind, and the seconds that it was told."""
    said = running.out.until(r"^notice (\w+) (\d+) ")
    running.say("return")
    assert running.ended() == 75
    return said[1], float(said[2])


@pytest.mark.slow
@pytest.mark.parametrize(("more", "most"), [("", 30), ("--window 120", 120), ("--window 15", 15)])
def test_the_hook_is_told_the_window_that_was_said(
    machine: Machine, gcp: GcpSimulator, more: str, most: float
) -> None:
    """S8: 30 s, unless `--window` says that the VM has a notice duration, or that less is to be counted on."""
    running = watching(machine, gcp, more=more)
    gcp.preempt(notice=120)
    kind, left = told(running)
    assert kind == "preempt"
    assert most - 5 < left <= most
    outcome = machine.outcome()
    assert (outcome["source"], outcome["also"]) == ("gcp instance/preempted", [])
    assert outcome["left"] <= most


@pytest.mark.torch
@pytest.mark.slow
def test_s10_acpi_at_the_notice_is_one_save_and_one_exit(
    trainee: Trainee, machine: Machine, gcp: GcpSimulator
) -> None:
    """`run` itself gets the SIGTERM of the shutdown that comes with the notice: one checkpoint, bit for bit what
    training had reached, one outcome, and 75."""
    running = trainee.guarded(options(gcp, "--every off"))
    trainee.begun(running)
    running.say("go 3")
    trainee.stepped(running, 3)
    assert gcp.wait_for_held(timeout=TIMEOUT)
    gcp.preempt(pid=running.pid)
    running.err.until("committed step 3")
    running.say("go 1")  # to the gate, where it is told to leave
    assert running.ended() == 75
    assert machine.committed() == [(1, 3, 0)]
    (kept,) = machine.outcomes_in_store()
    assert kept["step"] == 3
    assert machine.outcome()["committed"] is not None
    again = trainee.guarded("--every off")
    assert trainee.begun(again) == 3
    again.hush()
    trainee.finished(again)
    assert again.ended() == 0


@pytest.mark.slow
@pytest.mark.torch
def test_s10_the_power_is_cut_and_nothing_half_made_is_seen(
    trainee: Trainee, machine: Machine, gcp: GcpSimulator
) -> None:
    """A VM that is gone 1 s after the notice: whatever the save came to, the next life goes on from a whole
    checkpoint."""
    running = trainee.guarded(options(gcp, "--every off"))
    trainee.begun(running)
    running.say("go 2")
    trainee.stepped(running, 2)
    running.say("save")
    running.say("go 2")
    trainee.stepped(running, 4)
    assert gcp.wait_for_held(timeout=TIMEOUT)
    gcp.preempt(0.02, pid=running.pid)
    assert running.ended() in (75, -signal.SIGKILL)
    again = trainee.guarded("--every off")
    assert trainee.begun(again) in (2, 4)


FAULTS = [("503",), ("429", "reset", "404", "hang", "held-503", "held-not")]


@pytest.mark.slow
@pytest.mark.parametrize("faults", FAULTS, ids=",".join)
def test_a_notice_behind_a_fault_is_told_when_the_fault_is_over(
    machine: Machine, simulate_gcp: SimulateGcp, faults: tuple[str, ...]
) -> None:
    """S7 and S8d: storms, resets, answers that never come, a server that holds nothing."""
    vms = {fault: simulate_gcp() for fault in faults}
    runs = {fault: watching(machine, vm, f"run-{fault}") for fault, vm in vms.items()}
    for fault, vm in vms.items():
        vm.fault(fault, seconds=2.0)
        vm.preempt()
    for fault, running in runs.items():
        assert told(running)[0] == "preempt", fault


@pytest.mark.slow
def test_s8c_a_notice_before_the_start_ends_the_command_before_it_trains(
    machine: Machine, gcp: GcpSimulator
) -> None:
    """The first look sees it: a machine that is going away is no place to begin."""
    gcp.preempt()
    running = machine.run(options(gcp), sys.executable, NOTIFIED)
    running.err.until("before anything was trained")  # the exit waits for the deadline, or for a word
    running.send(signal.SIGTERM)
    assert running.ended() == 75
    assert machine.outcome()["kind"] == "preempt"


def test_a_migration_ends_nothing(machine: Machine, gcp: GcpSimulator) -> None:
    """S11: it is shown, and training goes on until the notice, behind a burst of 503 (S7, S8): its window is the one that was said."""
    gcp.maintain("migrate")
    running = watching(machine, gcp, more="--window 120")
    eventually(lambda: machine.status()["upcoming"], "the migration is shown")
    assert machine.status()["phase"] == "watching"
    gcp.fault("503", count=2)
    gcp.preempt(notice=120)
    kind, left = told(running)
    assert (kind, 90 < left <= 120) == ("preempt", True)
    assert machine.outcome()["source"] == "gcp instance/preempted"


@pytest.mark.slow
def test_gke_is_blind_and_says_what_to_do(machine: Machine, simulate_gcp: SimulateGcp) -> None:
    """S17: a 404 is not "not preempted"; SIGTERM is heard all the same."""
    gcp = simulate_gcp(gke=True)
    running = registered(machine, gcp)
    running.err.until(r"gcp instance/preempted: blind \(missing-key\).*hostNetwork: true")
    running.send(signal.SIGTERM)
    assert told(running)[0] == "signal"
