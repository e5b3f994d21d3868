"""S15: a machine that goes long before its time, or without a word. What was whole before is what the next one finds."""

from __future__ import annotations

import signal

import pytest

from spotguard.providers.simulator.aws.service import AwsSimulator
from spotguard.providers.simulator.azure.service import AzureSimulator
from spotguard.providers.simulator.gcp.service import GcpSimulator
from tests.e2e.processes import Running
from tests.e2e.trainee import Trainee

#: In the fast tier `test_kills` has a death in the middle of a notice.
pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.slow]

Service = AwsSimulator | AzureSimulator | GcpSimulator
SERVICES: dict[str, type[Service]] = {"aws": AwsSimulator, "azure": AzureSimulator, "gcp": GcpSimulator}


def two_steps_beyond_a_checkpoint(trainee: Trainee, cloud: str, service: Service) -> Running:
    """Step 2 is committed, and training stands at step 4."""
    running = trainee.guarded(f"--every off --provider {cloud} --metadata-endpoint {service.endpoint}")
    trainee.begun(running)
    running.say("go 2")
    trainee.stepped(running, 2)
    running.say("save")
    running.out.until("^saved 2$")
    running.say("go 2")
    trainee.stepped(running, 4)
    return running


def goes_on_from_step_2(trainee: Trainee) -> None:
    """The next machine does, to the end that plain training has."""
    assert trainee.machine.committed() == [(1, 2, 0)]
    running = trainee.guarded()
    assert trainee.begun(running) == 2
    running.say("free")
    trainee.finished(running)
    assert running.ended() == 0


@pytest.mark.parametrize("cloud", SERVICES)
def test_s15_a_machine_that_goes_in_the_middle_of_its_save(trainee: Trainee, cloud: str) -> None:
    """Promised were 120 or 30 s. The power is cut while objects are being written: no part of them is ever picked up."""
    with SERVICES[cloud]() as service:
        running = two_steps_beyond_a_checkpoint(trainee, cloud, service)
        running.say("stall 4")
        running.out.until("^doomed$")
        service.preempt()
        running.out.until("^doom at")
        trainee.machine.power_off()
    assert running.ended() == -signal.SIGKILL
    goes_on_from_step_2(trainee)


def test_s15_a_machine_that_goes_without_a_word(trainee: Trainee) -> None:
    """Every source saw, and there was nothing to see: two steps are lost, and nothing else."""
    with AwsSimulator() as service:
        running = two_steps_beyond_a_checkpoint(trainee, "aws", service)
        trainee.machine.power_off()
    assert running.ended() == -signal.SIGKILL
    assert not trainee.machine.outcomes_in_store()
    goes_on_from_step_2(trainee)
