"""How the tests of AWS's notices look."""

from __future__ import annotations

from typing import Protocol

from spotguard.providers.clouds.aws.autoscaling import TargetState
from spotguard.providers.clouds.aws.events import AwsScheduledEvents, Rebalance
from spotguard.providers.clouds.aws.source import AwsSource
from spotguard.providers.clouds.aws.spot import InstanceAction, TerminationTime
from spotguard.providers.notice import Notice, NoticeSource
from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.providers.clouds.blindness import EVERYWHERE

#: Every key that is watched.
KEYS: tuple[type[AwsSource], ...] = (
    InstanceAction,
    TerminationTime,
    Rebalance,
    AwsScheduledEvents,
    TargetState,
)

#: By fault of the simulated service: the reason that a source gives, whatever key it asks for.
BLIND = {"403": "forbidden"} | EVERYWHERE


#: Seconds for tests in which an answer never comes: each such request takes them all.
IMPATIENT = 1.0


class MakeSource(Protocol):
    """Makes the source that looks at a simulated instance, on the instance's own clock."""

    def __call__(
        self, simulator: AwsSimulator, kind: type[AwsSource] = InstanceAction, *, timeout: float = 5.0
    ) -> AwsSource: ...


def the_notice(source: NoticeSource) -> Notice:
    """Look once, and see exactly one notice."""
    sighting = source.poll()
    assert sighting.health.seeing, sighting.health
    (notice,) = sighting.notices
    return notice
