"""How the tests of AWS's notice look."""

from __future__ import annotations

from collections.abc import Callable

from spotguard.providers.aws import InstanceAction
from spotguard.providers.notice import Notice, NoticeSource
from spotguard.providers.simulator.aws import AwsSimulator

MakeSource = Callable[[AwsSimulator], InstanceAction]


def the_notice(source: NoticeSource) -> Notice:
    """Look once, and see exactly one notice."""
    sighting = source.poll()
    assert sighting.health.seeing, sighting.health
    (notice,) = sighting.notices
    return notice
