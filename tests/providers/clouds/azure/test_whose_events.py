"""Azure tells a whole set's events: this machine's are found by its name, and without one any event counts."""

from __future__ import annotations

import logging
from contextlib import closing

import pytest
from responses import RequestsMock

from spotguard.providers.clouds.azure.imds import EVENTS_PATH, NAME_PATH, AzureImds
from spotguard.providers.clouds.azure.source import AzureScheduledEvents
from spotguard.providers.health import SEEING
from spotguard.providers.notice import NoticeKind, Sighting
from spotguard.providers.simulator.azure.service import AzureSimulator
from tests.fakes.clock import ManualClock
from tests.fixtures_simulator import SimulateAzure
from tests.providers.clouds.azure.looking import Watch
from tests.providers.clouds.canned import CANNED, a_vm_of_azure


@pytest.mark.parametrize("capitals", [False, True])
def test_s13_of_a_whole_sets_events_ours_are_found(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch, capitals: bool
) -> None:
    """Another's is nothing to us; among many we are found, in any case."""
    vm = simulate_azure(clock, enabling=0, others=40, capitals=capitals)
    looker = watch(vm)
    vm.preempt(of="other")
    vm.schedule("Reboot", of="other")
    assert looker.look() == Sighting(SEEING)
    vm.preempt(of="all")
    assert looker.the_notice().kind is NoticeKind.PREEMPT


def test_s13_a_thousand_evictions_at_once_are_read(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch
) -> None:
    """Each machine of the set is told of all: far more than other services ever answer."""
    vm = simulate_azure(clock, enabling=0, others=999)
    for _ in range(40):
        vm.preempt(of="all")
    sighting = watch(vm).look()
    assert sighting.health is SEEING
    assert len(sighting.notices) == 40


def test_s13_without_a_name_any_event_counts_and_that_is_said(
    vm: AzureSimulator, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """As soon as the name is known, another's event stands no more."""
    vm.fault("500", path=NAME_PATH)
    looker = watch(vm)
    assert "own name not known" in looker.look().health.detail
    vm.preempt(of="other")
    with caplog.at_level(logging.WARNING, "spotguard"):
        notice = looker.the_notice()
        assert looker.the_notice() is notice
    assert "may be another machine's" in notice.detail
    assert [record.getMessage().count("pass --vm-name") for record in caplog.records] == [1]
    vm.clear()
    vm.preempt(of="other")
    assert looker.look() == Sighting(SEEING)


def test_s13_the_name_is_asked_for_again_now_and_then_and_at_an_event(
    vm: AzureSimulator, watch: Watch
) -> None:
    """Once it is known, nobody asks."""
    vm.fault("500", path=NAME_PATH)
    looker = watch(vm)
    for _ in range(12):
        looker.look()
    assert vm.count("GET", NAME_PATH) == 2
    vm.preempt(of="other")
    looker.look()
    assert vm.count("GET", NAME_PATH) == 3
    vm.clear()
    for _ in range(30):
        looker.look()
    assert vm.count("GET", NAME_PATH, 200) == 1


def test_s13_the_name_that_the_user_gives_counts_too(
    vm: AzureSimulator, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the service cannot be asked it is the only one; where the two differ, both count, and it is said."""
    vm.fault("500", path=NAME_PATH)
    looker = watch(vm, vm_name="POOL-vmss_100")
    assert looker.look() == Sighting(SEEING)
    vm.preempt(of="other")
    looker.the_notice()
    vm.clear()
    with caplog.at_level(logging.WARNING, "spotguard"):
        looker.look(11)
    assert "calls this machine 'pool-vmss_12'" in caplog.text
    vm.preempt()
    looker.the_notice()


@pytest.mark.parametrize(
    "body", [b"", b"<html>Sign in</html>", b"not found", b'{"error":"x"}', b"x" * 200, b"\xff\xfe"]
)
def test_s13_a_name_is_one_word(canned: RequestsMock, clock: ManualClock, body: bytes) -> None:
    """To believe in a page would make every notice somebody else's."""
    a_vm_of_azure(canned, body)
    events = [{"EventType": "Preempt", "Resources": ["vm_1"]}]
    canned.get(CANNED + EVENTS_PATH, json={"DocumentIncarnation": 2, "Events": events})
    with closing(AzureScheduledEvents(AzureImds(CANNED, clock), clock)) as source:
        sighting = source.poll()
    assert len(sighting.notices) == (0 if body == b"\xff\xfe" else 1)
