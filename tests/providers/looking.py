"""How the tests of AWS's notices look."""

from __future__ import annotations

from typing import Protocol

from spotguard.providers.aws import InstanceAction, TerminationTime
from spotguard.providers.aws_autoscaling import TargetState
from spotguard.providers.aws_events import Rebalance, ScheduledEvents
from spotguard.providers.aws_key import Key
from spotguard.providers.notice import Notice, NoticeSource
from spotguard.providers.simulator.aws import AwsSimulator

#: Every key that is watched.
KEYS: tuple[type[Key], ...] = (InstanceAction, TerminationTime, Rebalance, ScheduledEvents, TargetState)

#: By fault of the simulated service: the reason that a source gives, whatever key it asks for.
BLIND = {
    "403": "forbidden",
    "429": "throttled",
    "500": "server-error",
    "503": "server-error",
    "reset": "unreachable",
    "hang": "timeout",
    "slow": "timeout",
    "trickle": "timeout",
    "portal": "wrong-server",
    "redirect": "wrong-server",
    "huge": "wrong-server",
}

_NO_STATUS = ("reset", "hang", "slow", "trickle")


def code_of(fault: str) -> int:
    """The HTTP status that a source gives for a fault of the simulated services."""
    if fault[:3].isdigit():
        return int(fault[:3])
    return 302 if fault == "redirect" else 0 if fault in _NO_STATUS else 200


#: Seconds for tests in which an answer never comes: each such request takes them all.
IMPATIENT = 1.0


class MakeSource(Protocol):
    """Makes the source that looks at a simulated instance, on the instance's own clock."""

    def __call__(
        self, simulator: AwsSimulator, kind: type[Key] = InstanceAction, *, timeout: float = 5.0
    ) -> Key: ...


def the_notice(source: NoticeSource) -> Notice:
    """Look once, and see exactly one notice."""
    sighting = source.poll()
    assert sighting.health.seeing, sighting.health
    (notice,) = sighting.notices
    return notice
