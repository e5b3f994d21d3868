"""What each cloud can say of a machine, as a soak lets it: what is to be heard of it, when, and how it is taken back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from spotguard.providers.simulator.aws import service as aws
from spotguard.providers.simulator.aws.service import AwsSimulator
from spotguard.providers.simulator.azure import service as azure
from spotguard.providers.simulator.azure.service import AzureSimulator
from spotguard.providers.simulator.base import Simulator
from spotguard.providers.simulator.gcp import faults as gcp_faults
from spotguard.providers.simulator.gcp.service import GcpSimulator
from spotguard.providers.simulator.gcp.upcoming import NOTHING, SPELLINGS


@dataclass(frozen=True, slots=True)
class Way:
    """One thing that a cloud says."""

    #: The kind by which the agent tells of it; "" where it must not.
    kind: str
    say: Callable[[Any, Random], object]
    take_back: Callable[[Any, Random], object]
    #: Seconds, from the end of the last fault: a look that a fault still holds, the wait before the next, that one, and
    #: half as long again for a busy machine.
    within: float
    #: The agent says when it is taken back.
    withdraws: bool = False
    #: The machine has no life after it.
    last: bool = False
    #: A key that holds one warning at most: another one is new only where the key was seen without one in between.
    empties: str = ""


@dataclass(frozen=True, slots=True)
class Cloud:
    """One cloud: its service, and all that it says."""

    simulator: Callable[[], Simulator]
    ways: tuple[Way, ...]
    #: What goes wrong, by name.
    faults: tuple[str, ...]
    #: Requests within any second, and a second in the long run.
    most: int
    mean: float


#: To a client "slow" is "hang", as it answers after every patience.
_SAME = {"slow"}

#: Seconds. AWS and GCP have keys that are looked at every ten, with 4 s for a look and 2 s to the next after one
#: that failed.
_SLOW = 25.0


def _aws_ends(action: str) -> Way:
    def say(service: AwsSimulator, rng: Random) -> None:
        service.preempt(rng.uniform(20.0, 120.0), action)

    def take_back(service: AwsSimulator, rng: Random) -> None:
        service.remove("spot/instance-action")
        service.remove("spot/termination-time")

    return Way(action, say, take_back, within=12.0)


def _aws_plans(code: str, kind: str) -> Way:
    def say(service: AwsSimulator, rng: Random) -> None:
        service.maintenance(code, rng.uniform(300.0, 300_000.0))

    return Way(kind, say, lambda service, rng: service.maintenance_over("canceled"), _SLOW, withdraws=True)


AWS = Cloud(
    AwsSimulator,
    (
        *map(_aws_ends, ("terminate", "stop", "hibernate")),
        _aws_plans("system-reboot", "reboot"),
        _aws_plans("system-maintenance", "maintenance"),
        Way(
            "rebalance",
            lambda service, rng: service.rebalance(),
            lambda service, rng: service.remove("events/recommendations/rebalance"),
            _SLOW,
            empties="events/recommendations/rebalance",
        ),
        Way(
            "terminate",
            lambda service, rng: service.autoscaling("Terminated"),
            lambda service, rng: service.autoscaling("InService"),
            _SLOW,
            withdraws=True,
        ),
    ),
    tuple(sorted(aws.FAULTS.keys() - _SAME)),
    # No limit is published. Five keys, each with a token of its own that may have to be fetched, a second try and a proof.
    most=25,
    mean=2.5,
)


def _gcp_maintains(event: str, kind: str) -> Way:
    return Way(
        kind,
        lambda service, rng: service.maintain(event),
        lambda service, rng: service.maintain("none"),
        _SLOW,
        withdraws=True,
    )


GCP = Cloud(
    GcpSimulator,
    (
        # Nothing may come of a hanging GET for 25 s; the plain one beside it is sent every ten, and has 2 s.
        Way("preempt", lambda service, rng: service.preempt(), lambda service, rng: None, 20.0, last=True),
        _gcp_maintains("migrate", "migrate"),
        _gcp_maintains("terminate", "maintenance"),
        Way(
            "maintenance",
            lambda service, rng: service.plan(
                rng.uniform(300.0, 300_000.0), spelling=rng.choice(sorted(SPELLINGS))
            ),
            lambda service, rng: service.plan_nothing(rng.choice(sorted(NOTHING))),
            _SLOW,
            withdraws=True,
        ),
        Way(
            "stop",
            lambda service, rng: service.ask_to_stop(rng.uniform(30.0, 600.0)),
            lambda service, rng: service.put("instance/shutdown-details/stop-state", b"UNSPECIFIED"),
            _SLOW,
            withdraws=True,
        ),
    ),
    tuple(sorted(gcp_faults.FAULTS.keys() - _SAME)),
    # No limit is published. After a failure the long poll tries again at once, ten times within the first second, each
    # with a GET that is not held and maybe a proof; and four keys beside it.
    most=45,
    mean=3.0,
)


def _azure_over(service: AzureSimulator, rng: Random) -> None:
    """Called off where it has not started, and else over."""
    service.cancel()
    service.finish()


def _azure_schedules(event: str, of: tuple[str, ...] = ("us", "all")) -> Way:
    def say(service: AzureSimulator, rng: Random) -> None:
        service.schedule(event, of=rng.choice(of))

    kind = "" if of == ("other",) else event.lower()
    # A look has 5 s, and the next one is 2 s later at the most.
    return Way(kind, say, _azure_over, within=18.0, withdraws=True)


AZURE = Cloud(
    AzureSimulator,
    (
        *map(_azure_schedules, ("Preempt", "Terminate", "Reboot", "Redeploy", "Freeze")),
        _azure_schedules("Preempt", of=("other",)),
        Way("reboot", lambda service, rng: service.fail(), _azure_over, 18.0, withdraws=True),
    ),
    tuple(sorted(azure.FAULTS.keys() - _SAME)),
    # Five, for all who ask on the machine, of which some are to be left to Azure's own agents.
    most=5,
    mean=2.0,
)

CLOUDS = {"aws": AWS, "gcp": GCP, "azure": AZURE}
