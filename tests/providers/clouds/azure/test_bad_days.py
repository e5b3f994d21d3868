"""Azure's first call, its limit, and its bad days: nothing waits for it, and the rate stays within the limit."""

from __future__ import annotations

import itertools
import threading

import pytest

from spotguard.providers.clouds.azure.imds import EVENTS_PATH, NAME_PATH
from spotguard.providers.health import SEEING, Health, Sight
from spotguard.providers.notice import NoticeKind
from spotguard.providers.simulator.azure.service import AzureSimulator
from tests.e2e.processes import eventually
from tests.fakes.clock import ManualClock
from tests.fixtures_simulator import SimulateAzure
from tests.providers.clouds.azure.looking import IMPATIENT, Watch


def most_in_a_second(simulator: AzureSimulator) -> int:
    """How many requests came within any second."""
    times = [seen.at for seen in simulator.requests]
    return max(sum(1 for other in times if 0 <= other - at < 1.0) for at in times)


def test_s12_the_first_call_takes_two_minutes_and_nothing_waits_for_it(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch
) -> None:
    """It is said meanwhile what goes on; then it sees, and has asked about once a second all the time."""
    vm = simulate_azure(clock, enabling=120)
    looker, looks = watch(vm, patience=0.01), itertools.count(1)

    def look() -> Health:
        """One look, and its request has arrived: late ones of several looks would be one second's, and refused with 429."""
        number = next(looks)
        health = looker.look().health
        eventually(lambda: len(vm.requests) >= number, f"request {number}")
        return health

    for _ in range(115):
        health = look()
        assert (health.sight, health.reason) == (Sight.BLIND, "starting")
        assert health.detail.startswith("enabling: ")
    clock.advance(10)
    seen = threading.Event()
    while not look().seeing:  # the answer is on its way
        assert not seen.wait(0.01)
    assert look() is SEEING
    # One a look, the call that takes long, and the name. (In which second of a clock by hand one arrives is a matter of load.)
    assert len(vm.requests) <= next(looks) + 3
    assert vm.count(status=429) == 0


def test_s12_a_notice_that_the_slow_call_brings_counts(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch
) -> None:
    """It came while the events were being switched on; by then it has nothing left."""
    vm = simulate_azure(clock, enabling=60)
    vm.preempt(30)
    looker = watch(vm, patience=0.05)
    assert looker.look().notices == ()
    clock.advance(60)
    never = threading.Event()
    while not (sighting := looker.look(0.0)).notices:
        assert not never.wait(0.01)
    (notice,) = sighting.notices
    assert (notice.kind, notice.deadline) == (NoticeKind.PREEMPT, clock.monotonic())


def test_s12_a_server_that_takes_the_first_call_and_dies_costs_a_look(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch
) -> None:
    """The long call hangs on; a short one beside it sees."""
    vm = simulate_azure(clock, enabling=0)
    vm.fault("hang", count=1, path=EVENTS_PATH)
    looker = watch(vm, patience=0.2)
    assert looker.look().health.reason == "starting"
    assert looker.look().health is SEEING
    vm.preempt()
    looker.the_notice()


def test_s12_after_long_silence_a_call_may_take_long_again(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch
) -> None:
    """After 24 hours without a request the events are off, as on a machine that slept; what the long call of the morning
    brings is not taken for the evening's."""
    vm = simulate_azure(clock, enabling=0)
    looker = watch(vm, timeout=IMPATIENT, patience=IMPATIENT)
    assert looker.look().health is SEEING
    vm.fault("hang")
    assert looker.look(86400).health.reason == "timeout"
    assert looker.look().health.reason == "timeout"
    vm.clear()
    vm.preempt()
    assert looker.the_notice().kind is NoticeKind.PREEMPT
    vm.cancel()
    assert looker.look(61).notices == ()


def test_s12_looks_that_come_too_fast_send_nothing(vm: AzureSimulator, watch: Watch) -> None:
    """Whoever makes them: four requests in a second, and the rest see what was seen."""
    looker = watch(vm)
    first = looker.look()
    assert [looker.look(0.0) for _ in range(20)] == [first] * 20
    assert len(vm.requests) == 4
    assert looker.look().health is SEEING


@pytest.mark.parametrize("fault", ["reset", "500", "429"])
def test_s12_the_rate_stays_within_the_limit_whatever_goes_wrong(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch, fault: str
) -> None:
    """A name that is not told, events, an acknowledgement and second tries, all in one second."""
    vm = simulate_azure(clock, enabling=0, limit=None)
    looker = watch(vm)
    vm.fault("500", path=NAME_PATH)
    vm.preempt()
    for look in range(30):
        notice = looker.look(0.9).notices
        if look == 3:
            looker.source.acknowledge(notice[0].id)
            vm.fault(fault)
    assert 2 <= most_in_a_second(vm) <= 4


def test_s12_throttled_by_others_it_is_blind_and_asks_on(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch
) -> None:
    """429 says nothing of notices."""
    vm = simulate_azure(clock, enabling=0, limit=1)
    looker = watch(vm)
    assert looker.look().health.reason == "throttled"  # its name was the one request
    assert looker.look().health is SEEING
    assert len(vm.requests) == 3


def test_s12_410_for_70_s_is_blindness_that_ends(vm: AzureSimulator, watch: Watch) -> None:
    """As the pages have it; the notice that came meanwhile is seen at once."""
    looker = watch(vm)
    looker.look()
    vm.fault("410", seconds=70)
    for _ in range(69):
        health = looker.look().health
        assert (health.sight, health.reason) == (Sight.BLIND, "server-error")
        assert "410" in health.detail
    vm.preempt(30)
    looker.the_notice()
