"""How the tests of AWS's notice look."""

from __future__ import annotations

from typing import Protocol

from spotguard.providers.aws import InstanceAction
from spotguard.providers.notice import Notice, NoticeSource
from spotguard.providers.simulator.aws import AwsSimulator

#: Seconds for tests in which an answer never comes: each such request takes them all.
IMPATIENT = 1.0


class MakeSource(Protocol):
    """Makes the source that looks at a simulated instance, on the instance's own clock."""

    def __call__(self, simulator: AwsSimulator, *, timeout: float = 5.0) -> InstanceAction: ...


def the_notice(source: NoticeSource) -> Notice:
    """Look once, and see exactly one notice."""
    sighting = source.poll()
    assert sighting.health.seeing, sighting.health
    (notice,) = sighting.notices
    return notice
