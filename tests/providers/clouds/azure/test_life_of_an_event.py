"""An event is scheduled, begins, is over or called off: one notice all the way, over real sockets."""

from __future__ import annotations

import pytest

from spotguard.providers.health import SEEING
from spotguard.providers.notice import NoticeKind, Severity, Sighting
from spotguard.providers.simulator.azure.service import AzureSimulator
from tests.fakes.clock import ManualClock
from tests.fixtures_simulator import SimulateAzure
from tests.providers.clouds.azure.looking import Watch


def test_s14_an_eviction_is_scheduled_begins_and_is_over(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch
) -> None:
    """One notice all the way, though its id changes when it begins and its date is blank from then on."""
    vm = simulate_azure(clock, enabling=0, new_ids=True)
    looker = watch(vm)
    looker.look()
    deadline = vm.preempt(30)
    first = looker.the_notice()
    assert (first.deadline, first.window) == (deadline, 30)
    assert (first.kind, first.severity) == (NoticeKind.PREEMPT, Severity.TERMINAL)
    for _ in range(60):
        assert looker.the_notice() is first
    vm.finish()
    assert looker.look() == Sighting(SEEING)


def test_s14_what_is_called_off_stands_no_more(vm: AzureSimulator, watch: Watch) -> None:
    """And the next one is a new notice."""
    looker = watch(vm)
    vm.preempt()
    first = looker.the_notice()
    vm.cancel()
    assert looker.look() == Sighting(SEEING)
    vm.preempt()
    assert looker.the_notice().id != first.id


def test_s14_what_nobody_warned_of_has_nothing_left(
    vm: AzureSimulator, watch: Watch, clock: ManualClock
) -> None:
    """A failed host's reboot has begun when it is first seen."""
    looker = watch(vm)
    looker.look()
    vm.fail()
    notice = looker.the_notice()
    assert (notice.kind, notice.severity) == (NoticeKind.REBOOT, Severity.TERMINAL)
    assert notice.deadline == clock.monotonic()


@pytest.mark.parametrize("dates", ["rfc1123", "iso"])
@pytest.mark.parametrize("kind", ["Terminate", "Reboot", "Redeploy"])
def test_s14_what_comes_later_is_terminal_when_it_begins(
    simulate_azure: SimulateAzure, clock: ManualClock, watch: Watch, dates: str, kind: str
) -> None:
    """Until then its deadline is its own."""
    vm = simulate_azure(clock, enabling=0, dates=dates)
    looker = watch(vm)
    at = clock.monotonic() + 86400
    vm.schedule(kind, 86400)
    later = looker.the_notice()
    assert (later.severity, later.deadline) == (Severity.LATER, at)
    vm.begin()
    begun = looker.the_notice()
    assert (begun.id, begun.severity, begun.deadline) == (later.id, Severity.TERMINAL, clock.monotonic())


def test_s14_a_freeze_is_advice_also_when_it_begins(vm: AzureSimulator, watch: Watch) -> None:
    """Some seconds, and nothing is lost."""
    looker = watch(vm)
    vm.schedule("Freeze")
    assert looker.the_notice().severity is Severity.ADVISORY
    vm.begin()
    assert looker.the_notice().severity is Severity.ADVISORY
    vm.finish()
    assert looker.look().notices == ()


def test_an_unknown_event_type_ends_the_machine_soon(
    vm: AzureSimulator, watch: Watch, clock: ManualClock
) -> None:
    """A type of a later time, though its date is far."""
    looker = watch(vm)
    vm.schedule("Defrag", 86400)
    notice = looker.the_notice()
    assert (notice.kind, notice.severity) == (NoticeKind.UNKNOWN, Severity.TERMINAL)
    assert notice.deadline == clock.monotonic() + 30
