"""Each cloud's service at its own address, in a network of the test's own: every default is what a machine there has.

`spotguard run` is told nothing of the cloud. It reads the firmware, asks 169.254.169.254, and does its job.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spotguard.providers.simulator.aws.service import AwsSimulator
from spotguard.providers.simulator.azure.service import AzureSimulator
from spotguard.providers.simulator.gcp.service import GcpSimulator
from tests.e2e.island import Island
from tests.e2e.trainee import Trainee

pytestmark = [pytest.mark.torch, pytest.mark.wholepath]

IPV4, IPV6 = "169.254.169.254", "fd00:ec2::254"

#: Cloud -> its service, and the source that shows its notice.
CLOUDS: dict[str, tuple[Callable[[], AwsSimulator | GcpSimulator | AzureSimulator], str]] = {
    "aws": (AwsSimulator, "aws spot/instance-action"),
    "gcp": (GcpSimulator, "gcp instance/preempted"),
    "azure": (AzureSimulator, "azure scheduledevents"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cloud", "address"),
    [*((cloud, IPV4) for cloud in CLOUDS), ("aws", IPV6)],
    ids=lambda value: value,
)
def test_a_run_with_every_default_sees_saves_and_leaves(trainee: Trainee, cloud: str, address: str) -> None:
    """The notice is committed under, and the run ends with 75; every request was for the cloud's own address."""
    machine = trainee.machine
    service, source = CLOUDS[cloud]
    simulator = service()
    simulator.adopt(Island(machine, cloud, address).listening[address])
    env = {"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": "IPv6"} if address == IPV6 else {}
    words = f"run --run-id job --store {machine.store.as_uri()} --every off --".split()
    with simulator:
        running = machine.spotguard(*words, *trainee.command(), **env)
        trainee.begun(running)
        running.say("go 3")
        trainee.stepped(running, 3)
        running.err.until(f"{source}: seeing")
        simulator.preempt()
        running.err.until("gate at step 3")
        running.say("free")
        assert running.ended() == 75
        hosts = {seen.headers["host"] for seen in simulator.requests}
    assert hosts == {f"[{address}]" if ":" in address else address}
    assert machine.committed() == [(1, 3, 0)]
    outcome = machine.outcome()
    assert (outcome["source"], outcome["why"]) == (source, "")
