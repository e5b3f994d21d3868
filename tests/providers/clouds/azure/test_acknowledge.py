"""Azure is told that an event may begin: when somebody asks, for what is ours alone, and not for ever."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
from responses import RequestsMock

from spotguard.providers.clouds.azure.imds import EVENTS_PATH, NAME_PATH, AzureImds
from spotguard.providers.clouds.azure.source import AzureScheduledEvents
from spotguard.providers.health import SEEING
from spotguard.providers.notice import Severity
from spotguard.providers.simulator.azure.service import AzureSimulator
from tests.fakes.clock import ManualClock
from tests.fixtures_simulator import SimulateAzure
from tests.providers.clouds.azure.looking import Looker, Watch
from tests.providers.clouds.canned import CANNED, a_vm_of_azure


def test_an_event_of_ours_alone_is_acknowledged_when_somebody_asks_and_not_before(
    vm: AzureSimulator, watch: Watch
) -> None:
    """From any thread; the thread that looks sends it, once."""
    looker = watch(vm)
    vm.preempt()
    notice = looker.the_notice()
    for _ in range(5):
        looker.look()
    assert vm.count("POST") == 0
    asking = threading.Thread(target=looker.source.acknowledge, args=(notice.id,), name="asker")
    asking.start()
    asking.join()
    assert vm.count("POST") == 0
    for _ in range(5):
        looker.look()
    assert vm.count("POST", status=200) == vm.count("POST") == 1


@pytest.mark.parametrize("how", ["all", "no name", "two names", "another id", "begun", "gone"])
def test_an_event_that_may_concern_others_is_never_acknowledged(
    vm: AzureSimulator, watch: Watch, how: str
) -> None:
    """It would begin for all that it is about. What has begun, or is gone, needs nothing."""
    if how == "no name":
        vm.fault("500", path=NAME_PATH)
    looker = watch(vm, vm_name="pool-vmss_7" if how == "two names" else "")
    vm.preempt(of="all" if how == "all" else "us")
    notice = looker.the_notice()
    if how == "begun":
        vm.begin()
    elif how == "gone":
        vm.cancel()
    looker.source.acknowledge("azure/another" if how == "another id" else notice.id)
    for _ in range(5):
        looker.look()
    looker.source.close()
    assert vm.count("POST") == 0


def test_the_id_of_now_is_acknowledged(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch
) -> None:
    """The notice's own is the first that its event had."""
    vm = simulate_azure(clock, enabling=0)
    looker = watch(vm)
    vm.schedule("Reboot")
    later = looker.the_notice()
    vm.cancel()
    vm.schedule("Reboot", 890)
    assert looker.the_notice().id == later.id
    looker.source.acknowledge(later.id)
    assert looker.look().health is SEEING
    assert looker.the_notice().severity is Severity.TERMINAL


@pytest.mark.parametrize(("status", "sent"), [(200, 1), (400, 1), (410, 5), (429, 5), (500, 5)])
def test_an_acknowledgement_that_fails_is_tried_again_and_not_for_ever(
    canned: RequestsMock, clock: ManualClock, status: int, sent: int
) -> None:
    """Five times, a look apart; a refusal is an answer."""
    a_vm_of_azure(canned)
    event = {"EventId": "A", "EventType": "Reboot", "Resources": ["vm_1"], "EventStatus": "Scheduled"}
    event["NotBefore"] = "Fri, 20 Nov 2026 12:00:00 GMT"
    canned.get(CANNED + EVENTS_PATH, json={"DocumentIncarnation": 2, "Events": [event]})
    posted = canned.post(CANNED + EVENTS_PATH, status=status)
    with closing(AzureScheduledEvents(AzureImds(CANNED, clock), clock)) as source:
        looker = Looker(source, clock)
        source.acknowledge(looker.the_notice().id)
        for _ in range(10):
            looker.look()
    assert [call.request.body for call in posted.calls] == [b'{"StartRequests": [{"EventId": "A"}]}'] * sent


def test_the_last_acknowledgement_is_sent_at_the_end(vm: AzureSimulator, watch: Watch) -> None:
    """A run exits right after its commit."""
    looker = watch(vm)
    vm.preempt()
    notice = looker.the_notice()
    looker.source.acknowledge(notice.id)
    looker.source.close()
    assert vm.count("POST", status=200) == 1
