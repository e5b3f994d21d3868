"""AWS's metadata service as it behaves in the field, end to end: the training process is told of each notice.

In the fast tier one test plays what happens in the field; `tests/providers/clouds` has each case.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spotguard.providers.simulator.aws.service import AwsSimulator
from spotguard.providers.simulator.http_server import HttpRequest, Reply
from tests.e2e.harness import Machine
from tests.e2e.processes import TIMEOUT, Running, eventually
from tests.fixtures_simulator import SimulateAws

pytestmark = pytest.mark.wholepath

NOTIFIED = str(Path(__file__).parent / "programs" / "notified.py")
KEY = "spot/instance-action"


def watching(machine: Machine, aws: AwsSimulator, run_id: str = "job") -> Running:
    """A run that is guarded, and whose agent has looked once and found nothing."""
    running = machine.run(f"--run-id {run_id}", sys.executable, NOTIFIED, aws=aws)
    running.out.until("^ready")
    eventually(lambda: machine.sessions(run_id) == 1, "registered")
    assert aws.wait_for(1, path=KEY, status=404, timeout=TIMEOUT)
    return running


def told(running: Running) -> tuple[str, float]:
    """Wait until the hook has the notice, and let it save: the kind, and the seconds that it was told."""
    said = running.out.until(r"^notice (\w+) (\d+) ")
    running.say("return")
    assert running.ended() == 75
    return said[1], float(said[2])


# Not both at once: where this machine holds the agent up for a second, a token of 2 s ends in the very look whose next
# one is refused, and twice refused is blind.
@pytest.mark.slow
@pytest.mark.parametrize(("ttl", "renewed", "refused"), [(2, 3, 0), (21600, 0, 1)])
def test_a_token_that_expires_hides_no_notice(
    machine: Machine, simulate_aws: SimulateAws, ttl: int, renewed: int, refused: int
) -> None:
    """S1: tokens live 2 s; or the one in hand is refused in the instant of the notice. Sight is never lost."""
    aws = simulate_aws(max_ttl=ttl)
    running = watching(machine, aws)
    # Each key has a token of its own, and this one's is renewed after every look.
    assert aws.wait_for(5 + renewed, method="PUT", status=200, timeout=TIMEOUT)
    if refused:
        aws.fault("401", count=refused, path=KEY)
    aws.preempt(90)
    kind, left = told(running)
    assert aws.count(status=401) >= refused
    assert kind == "terminate"
    assert 60 < left <= 90
    assert not re.search(r"\b401\b", running.err.to_the_end())


@pytest.mark.slow
def test_a_time_that_is_new_at_each_look_is_one_notice(machine: Machine, aws: AwsSimulator) -> None:
    """AWS's public mock (amazon-ec2-metadata-mock) at its defaults: two minutes from each request on, and a new recommendation."""
    running = watching(machine, aws)
    for look in range(1, 5):
        aws.rebalance()
        aws.preempt()
        assert aws.wait_for(look, path=KEY, status=200, timeout=TIMEOUT)
    kind, left = told(running)
    assert (kind, 90 < left <= 120) == ("terminate", True)
    said = running.err.to_the_end()
    assert len(re.findall("in reserve, notifying", said)) == 1
    assert not re.search("ERROR|another notice|moved earlier", said)
    assert len(re.findall("a warning, and no end of this machine", said)) <= 1


class PublicMock(AwsSimulator):
    """AWS's public mock (amazon-ec2-metadata-mock), but for its window of 120 s: version 1 is served too, and once it has
    begun every answer holds the time of its request. At its defaults it begins at once."""

    def __init__(self, window: float) -> None:
        super().__init__(v2_required=False)
        self._window = window
        self.begun = True

    def _truth(self, request: HttpRequest) -> Reply:
        if self.begun:
            self.rebalance()
            self.preempt(self._window)
        return super()._truth(request)


@pytest.mark.slow
@pytest.mark.parametrize("delayed", [False, True])
def test_a_run_on_the_public_mock_ends_at_the_first_deadline_that_it_named(
    machine: Machine, delayed: bool
) -> None:
    """Each look shows a later one, before training and in the middle of it, and nobody saves: one notice, told of once."""
    with PublicMock(window=10) as aws:
        aws.begun = not delayed
        running = watching(machine, aws) if delayed else machine.run("", sys.executable, NOTIFIED, aws=aws)
        aws.begun = True
        assert running.ended() == 75
        assert aws.count(path=KEY, status=200) >= 3
    said = running.err.to_the_end()
    assert len(re.findall("in reserve, notifying", said)) == 1
    assert len(re.findall("ERROR", said)) == len(re.findall("NOT COMMITTED", said)) == 1
    assert not re.search("another notice|moved earlier", said)
    assert len(re.findall("a warning, and no end of this machine", said)) <= 1
    outcome = machine.outcome()
    assert (outcome["kind"], outcome["committed"]) == ("terminate", None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "window", "kind", "most"),
    [("stop", 8, "stop", 8), ("terminate", -3, "terminate", 10), ("hibernate", 0, "hibernate", 10)],
)
def test_the_hook_is_told_the_kind_and_the_time_of_the_notice(
    machine: Machine, aws: AwsSimulator, action: str, window: float, kind: str, most: float
) -> None:
    """S3, S4: a short window; a notice that is late, and hibernation, which has none: at once, with a last try."""
    running = watching(machine, aws)
    aws.preempt(window, action)
    assert (heard := told(running))[0] == kind
    assert most - 5 < heard[1] <= most
    outcome = machine.outcome()
    assert (outcome["kind"], outcome["source"]) == (kind, "aws spot/instance-action")
    assert outcome["left"] <= max(window, 0)


STANDING: dict[str, tuple[Callable[[AwsSimulator], object], str, float]] = {
    "spot/termination-time": (lambda aws: aws.termination_time("valid", 90), "terminate", 90),
    "autoscaling/target-lifecycle-state": (lambda aws: aws.autoscaling("Terminated"), "terminate", 30),
    "events/maintenance/scheduled": (lambda aws: aws.maintenance("system-reboot", 100), "reboot", 100),
}


@pytest.mark.slow
@pytest.mark.parametrize("key", STANDING)
def test_each_key_that_ends_the_machine_is_told(machine: Machine, aws: AwsSimulator, key: str) -> None:
    """S5, and its neighbours: the older key where the newer is hidden, a group's scale-in, an event that is near."""
    happen, kind, most = STANDING[key]
    aws.fault("503", path=key)  # blind, it is asked for every 2 s, and not every 10
    running = watching(machine, aws)
    happen(aws)
    aws.rebalance()  # advice beside it changes nothing
    aws.fault("503", path=key, seconds=0)
    heard = told(running)
    assert heard[0] == kind
    assert most - 30 < heard[1] <= most
    outcome = machine.outcome()
    assert (outcome["kind"], outcome["source"]) == (kind, f"aws {key}")


def test_advice_ends_nothing(machine: Machine, simulate_aws: SimulateAws) -> None:
    """S6: a recommendation alone, seen and said, and training goes on until the notice.

    With tokens that live 2 s (S1), and the notice behind a burst of 503 (S7); it is told with its own time (S3).
    """
    aws = simulate_aws(max_ttl=2)
    aws.rebalance()
    aws.maintenance("instance-stop", 86400)
    running = watching(machine, aws)
    lines = ("rebalance from aws events/recommendations", "stop from aws events/maintenance")  # in any order
    eventually(
        lambda: all(re.search(f"{line}.* training continues", running.err.text) for line in lines),
        "both are said",
    )
    assert running.running
    aws.fault("503", count=2, path=KEY)
    aws.preempt(60)
    kind, left = told(running)
    assert (kind, 30 < left <= 60) == ("terminate", True)
    outcome = machine.outcome()
    assert (outcome["kind"], outcome["source"]) == (kind, "aws spot/instance-action")


FAULTS = [("503",), ("429", "reset", "slow", "trickle", "401", "hang")]


@pytest.mark.slow
@pytest.mark.parametrize("faults", FAULTS, ids=",".join)
def test_a_notice_behind_a_fault_is_told_when_the_fault_is_over(
    machine: Machine, simulate_aws: SimulateAws, faults: tuple[str, ...]
) -> None:
    """S7: bursts of 503, resets, answers that come slowly or never: bounded waits, and then the notice."""
    clouds = {fault: simulate_aws() for fault in faults}
    runs = {fault: watching(machine, aws, f"run-{fault}") for fault, aws in clouds.items()}
    for fault, aws in clouds.items():
        aws.fault(fault, seconds=2.0)
        aws.preempt(120)
    for fault, running in runs.items():
        kind, left = told(running)
        assert kind == "terminate"
        assert left > 90, f"{fault} cost more than its own time and one look"
