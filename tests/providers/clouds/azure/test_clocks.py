"""A clock that is off, or a date that is none: no window is longer than Azure gives, and none is past."""

from __future__ import annotations

from contextlib import closing

import pytest
from responses import RequestsMock

from spotguard.providers.clouds.azure.imds import EVENTS_PATH, AzureImds
from spotguard.providers.clouds.azure.source import AzureScheduledEvents
from spotguard.providers.notice import Severity
from spotguard.providers.simulator.azure.service import AzureSimulator
from tests.fakes.clock import ManualClock
from tests.providers.clouds.azure.looking import Watch
from tests.providers.clouds.canned import CANNED, a_vm_of_azure


@pytest.mark.parametrize(("skew", "left"), [(60, 29), (-60, 29), (3600, 29), (-4, 26), (4, 30)])
def test_s18_a_clock_that_is_off_makes_no_window_longer_than_azure_gives(
    vm: AzureSimulator, watch: Watch, clock: ManualClock, skew: float, left: float
) -> None:
    """By Azure's own time, where ours is clearly another. And a clock put right later moves the deadline only to an
    earlier instant."""
    looker = watch(vm)
    looker.look()
    vm.preempt(30, skew=skew)
    first = looker.the_notice(0.0)
    assert first.deadline == clock.monotonic() + left
    clock.step_wall(-3600)
    assert looker.the_notice() is first
    clock.step_wall(3 * 3600)
    assert looker.the_notice().deadline <= first.deadline


@pytest.mark.parametrize("skew", [-1200.0, 1200.0, -86400.0])
def test_s18_what_azure_begins_in_a_quarter_of_an_hour_is_not_past_by_a_clock_that_is_ahead(
    vm: AzureSimulator, watch: Watch, clock: ManualClock, skew: float
) -> None:
    """Nor is it further off by one that is behind: each answer says what time it is there."""
    looker = watch(vm)
    vm.schedule("Reboot", 900, skew=skew)
    notice = looker.the_notice(0.0)
    assert notice.severity is Severity.LATER
    assert notice.deadline == clock.monotonic() + 899
    vm.begin()
    assert looker.the_notice().severity is Severity.TERMINAL


@pytest.mark.parametrize("said", ["", "yesterday", "0"])
def test_s18_a_date_that_is_none_leaves_our_own_clock(
    canned: RequestsMock, clock: ManualClock, said: str
) -> None:
    """A service of old, or a proxy that rewrites it."""
    event = {"EventId": "A", "EventType": "Preempt", "EventStatus": "Scheduled", "Resources": ["vm"]}
    events = [event | {"NotBefore": "2026-11-20T10:00:20Z"}]
    document = {"DocumentIncarnation": 1, "Events": events}
    a_vm_of_azure(canned, b"vm")
    canned.get(CANNED + EVENTS_PATH, json=document, headers={"Date": said})
    with closing(AzureScheduledEvents(AzureImds(CANNED, clock), clock, vm_name="vm")) as source:
        (notice,) = source.poll().notices
    assert notice.deadline == clock.monotonic() + 20
