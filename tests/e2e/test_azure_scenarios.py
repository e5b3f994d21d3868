"""Azure's metadata service as it behaves in the field, end to end: our own events are told, and nobody else's.

In the fast tier one test plays what happens in the field; `tests/providers/clouds` has each case.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spotguard.providers.clouds.azure.imds import EVENTS_PATH
from spotguard.providers.simulator.azure.service import AzureSimulator
from tests.e2e.harness import Machine
from tests.e2e.processes import TIMEOUT, Running, eventually
from tests.e2e.trainee import Trainee
from tests.fixtures_simulator import SimulateAzure

pytestmark = pytest.mark.wholepath

NOTIFIED = str(Path(__file__).parent / "programs" / "notified.py")


@pytest.fixture
def vm(simulate_azure: SimulateAzure) -> AzureSimulator:
    """A simulated machine of a scale set, whose events are on."""
    return simulate_azure(enabling=0)


def options(vm: AzureSimulator, more: str = "") -> str:
    return f"--provider azure --metadata-endpoint {vm.endpoint} {more}"


def watching(machine: Machine, vm: AzureSimulator, more: str = "") -> Running:
    """A run that is guarded, and whose agent has looked and found nothing."""
    running = machine.run(options(vm, more), sys.executable, NOTIFIED)
    running.out.until("^ready")
    eventually(lambda: machine.sessions() == 1, "registered")
    assert vm.wait_for(1, "GET", EVENTS_PATH, 200, timeout=TIMEOUT)
    return running


def told(running: Running) -> tuple[str, float]:
    """Wait until the hook has the notice: the kind, and the seconds that it was told."""
    said = running.out.until(r"^notice (\w+) (\d+) ")
    return said[1], float(said[2])


def saved(running: Running) -> None:
    """The hook returns, and the run ends as after a commit."""
    running.say("return")
    assert running.ended() == 75


@pytest.mark.slow
@pytest.mark.torch
def test_an_eviction_among_many_machines_is_committed(trainee: Trainee, vm: AzureSimulator) -> None:
    """S13: another's event before it is nothing, and the list that names us among others is our end."""
    running = trainee.guarded(options(vm, "--every off"))
    assert trainee.begun(running) == 0
    assert vm.wait_for(1, "GET", EVENTS_PATH, 200, timeout=TIMEOUT)
    vm.preempt(of="other")
    running.say("go 7")
    trainee.stepped(running, 7)
    looks = vm.count("GET", EVENTS_PATH, 200)
    assert vm.wait_for(looks + 2, "GET", EVENTS_PATH, 200, timeout=TIMEOUT)
    assert trainee.machine.committed() == []
    vm.preempt(of="all")
    running.err.until("gate at step 7")
    running.say("free")
    running.out.until("^preempted 75$")
    assert running.ended() == 75
    assert trainee.machine.committed() == [(1, 7, 0)]
    outcome = trainee.machine.outcome()
    assert (outcome["kind"], outcome["source"]) == ("preempt", "azure scheduledevents")
    assert (outcome["step"], outcome["code"], outcome["why"]) == (7, 75, "")
    assert 0 < outcome["committed"] < 30 - outcome["reserve"]
    assert vm.count("POST") == 0
    assert vm.count(status=429) == 0


def test_an_event_of_this_machine_alone_is_acknowledged_after_the_commit(
    machine: Machine, vm: AzureSimulator
) -> None:
    """With --acknowledge; before it, not one POST."""
    running = watching(machine, vm, "--acknowledge")
    vm.preempt(300)
    assert told(running)[0] == "preempt"
    looks = vm.count("GET", EVENTS_PATH, 200)
    assert vm.wait_for(looks + 2, "GET", EVENTS_PATH, 200, timeout=TIMEOUT)
    assert vm.count("POST") == 0
    saved(running)
    assert vm.count("POST", EVENTS_PATH, 200) == vm.count("POST") == 1
    assert "acknowledged, so Azure may begin: Preempt" in running.err.to_the_end()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["not alone", "not saved", "not asked for"])
def test_an_event_of_others_or_unsaved_is_never_acknowledged(
    machine: Machine, vm: AzureSimulator, how: str
) -> None:
    """It would begin for others too; or cost what was not saved."""
    running = watching(machine, vm, "" if how == "not asked for" else "--acknowledge")
    vm.preempt(of="all" if how == "not alone" else "us")
    told(running)
    if how == "not saved":
        running.say("raise the store is full")
        assert running.ended() == 75
    else:
        saved(running)
    assert vm.count("POST") == 0


def test_a_cancelled_event_ends_nobody(machine: Machine, vm: AzureSimulator) -> None:
    """S14: training goes on; the next notice is a new one, and what has begun leaves a last try.

    Another machine's event is nothing (S13), and a burst of 500 hides none of ours (S12).
    """
    running = watching(machine, vm)
    vm.preempt(of="other")
    vm.fault("500", count=2)
    vm.preempt(60)
    running.err.until("has the notice")
    vm.cancel()
    running.err.until("withdrawn: training continues")
    running.say("return")
    vm.fail()
    running.out.until("^notice reboot ")
    saved(running)
    outcome = machine.outcome()
    assert (outcome["kind"], outcome["left"]) == ("reboot", 0)


@pytest.mark.slow
def test_the_first_call_holds_nothing_up_and_its_notice_counts(
    machine: Machine, simulate_azure: SimulateAzure
) -> None:
    """S12: the command runs meanwhile, and it is said what is waited for."""
    vm = simulate_azure(enabling=4)
    vm.preempt(60)
    running = machine.run(options(vm), sys.executable, NOTIFIED)
    running.out.until("^ready")
    running.err.until(r"blind \(starting\): enabling: ")
    assert told(running)[0] == "preempt"
    saved(running)
    assert vm.count(status=429) == 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["410", "429", "500", "reset", "slow", "trickle", "portal", "redirect"])
def test_a_notice_behind_a_fault_is_told_when_the_fault_is_over(
    machine: Machine, vm: AzureSimulator, fault: str
) -> None:
    """S12, S17: bounded waits, and then the notice."""
    running = watching(machine, vm)
    vm.fault(fault, seconds=2.0)
    vm.preempt(60)
    assert told(running)[0] == "preempt"
    saved(running)
    assert machine.outcome()["left"] > 15


@pytest.mark.slow
def test_a_machine_that_does_not_know_its_name_takes_every_event_for_its_own(
    machine: Machine, vm: AzureSimulator
) -> None:
    """And says so; with --vm-name it is not fooled."""
    vm.fault("500", path="compute/name")
    running = watching(machine, vm)
    vm.preempt(of="other")
    assert told(running)[0] == "preempt"
    saved(running)
    assert "pass --vm-name" in running.err.to_the_end()
    vm.clear()
    vm.fault("500", path="compute/name")
    vm.preempt(of="other")
    named = watching(machine, vm, f"--vm-name {vm.vm_name}")
    looks = vm.count("GET", EVENTS_PATH, 200)
    assert vm.wait_for(looks + 2, "GET", EVENTS_PATH, 200, timeout=TIMEOUT)
    vm.preempt()
    assert told(named)[0] == "preempt"
    saved(named)
