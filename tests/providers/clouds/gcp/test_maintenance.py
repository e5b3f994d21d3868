"""What is no preemption: host maintenance, planned or near, and stops, against the simulated VM."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from responses import RequestsMock

from spotguard.providers.clouds.gcp.maintenance import MaintenanceEvent, StopState
from spotguard.providers.clouds.gcp.metadata import GcpMetadata
from spotguard.providers.clouds.gcp.source import GcpSource
from spotguard.providers.clouds.gcp.upcoming import UpcomingMaintenance
from spotguard.providers.health import SEEING
from spotguard.providers.notice import Notice, NoticeKind, Severity, Sighting
from spotguard.providers.simulator.gcp.service import GcpSimulator
from spotguard.providers.simulator.gcp.upcoming import NOTHING, SPELLINGS
from tests.fakes.clock import ManualClock
from tests.fixtures_simulator import SimulateGcp
from tests.providers.clouds.blindness import assert_blind
from tests.providers.clouds.canned import CANNED, GCP, GOOGLE
from tests.providers.clouds.gcp.looking import BLIND
from tests.providers.clouds.looking import IMPATIENT

Make = Callable[..., GcpSource]
ALL = (MaintenanceEvent, UpcomingMaintenance, StopState)


@pytest.fixture
def vm(simulate_gcp: SimulateGcp, clock: ManualClock) -> GcpSimulator:
    """A simulated VM on the clock by hand."""
    return simulate_gcp(clock)


@pytest.fixture
def watch(vm: GcpSimulator) -> Iterator[Make]:
    """Makes a source of one of the classes; it is closed when the test ends."""
    with ExitStack() as closing:

        def make(sort: type[GcpSource], *, timeout: float = 10.0) -> GcpSource:
            source = sort(GcpMetadata(vm.endpoint, timeout=timeout), vm.clock)
            closing.callback(source.close)
            return source

        yield make


def the_notice(source: GcpSource) -> Notice:
    sighting = source.poll()
    assert sighting.health.seeing, sighting.health
    (notice,) = sighting.notices
    return notice


def brief(notice: Notice) -> tuple[NoticeKind, Severity, float]:
    return notice.kind, notice.severity, notice.deadline - notice.seen_at


# --- maintenance-event --------------------------------------------------------------------------------------


def test_s11_a_live_migration_is_advice(vm: GcpSimulator, watch: Make) -> None:
    """Nothing is lost by it: no save-and-exit. It is over when the key says NONE again."""
    source = watch(MaintenanceEvent)
    assert source.poll() == Sighting(SEEING)
    vm.maintain("migrate")
    assert brief(the_notice(source)) == (NoticeKind.MIGRATE, Severity.ADVISORY, 60)
    vm.maintain("none")
    assert source.poll() == Sighting(SEEING)


def test_s11_an_end_for_maintenance_is_in_an_hour_from_its_first_sight(
    vm: GcpSimulator, watch: Make, clock: ManualClock
) -> None:
    """However often it is read."""
    source = watch(MaintenanceEvent)
    vm.maintain("terminate")
    first = the_notice(source)
    assert brief(first) == (NoticeKind.MAINTENANCE, Severity.LATER, 3600)
    assert first.id == "gcp/maintenance-event/TERMINATE_ON_HOST_MAINTENANCE"
    clock.advance(600)
    assert the_notice(source) is first
    vm.maintain("none")
    source.poll()
    vm.maintain("terminate")
    assert the_notice(source).deadline == clock.monotonic() + 3600


def test_s11_the_key_is_read_from_the_start_on(vm: GcpSimulator, watch: Make) -> None:
    """A key that was never read has its warning skipped: the first look reads it, whatever else is."""
    vm.fault("503", count=1)
    source = watch(MaintenanceEvent)
    assert source.poll().health.reason == "server-error"
    assert source.poll() == Sighting(SEEING)
    assert vm.count(path="instance/maintenance-event") == 2


@pytest.mark.parametrize("body", [b"none", b"", b"NONE NONE", b"<html>", b"\xff", b"REBOOT"])
def test_an_unknown_maintenance_word_is_blindness(
    canned: RequestsMock, clock: ManualClock, body: bytes
) -> None:
    canned.get(f"{GCP}instance/maintenance-event", body=body, headers=GOOGLE)
    with closing(MaintenanceEvent(GcpMetadata(CANNED), clock)) as source:
        sighting = source.poll()
    assert (sighting.notices, sighting.health.reason) == ((), "garbage")


def test_a_word_of_a_later_time_in_the_place_of_none_is_the_end_soon(
    vm: GcpSimulator, watch: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """And is said loudly, once."""
    source = watch(MaintenanceEvent)
    source.poll()
    vm.put("instance/maintenance-event", b"EVAPORATE_ON_HOST_MAINTENANCE")
    with caplog.at_level(logging.WARNING, "spotguard"):
        first = the_notice(source)
        assert the_notice(source) is first
    assert brief(first) == (NoticeKind.UNKNOWN, Severity.TERMINAL, 30)
    (record,) = caplog.records
    assert "EVAPORATE_ON_HOST_MAINTENANCE is unknown to this program" in record.getMessage()


# --- upcoming-maintenance -----------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_s11_planned_maintenance_is_for_later(
    vm: GcpSimulator, watch: Make, clock: ManualClock, spelling: str
) -> None:
    """Its window's start is the deadline; it is one notice however often it is read."""
    vm.plan(7 * 86400, spelling=spelling)
    source = watch(UpcomingMaintenance)
    first = the_notice(source)
    assert brief(first) == (NoticeKind.MAINTENANCE, Severity.LATER, 7 * 86400)
    clock.advance(3600)
    assert the_notice(source) is first


@pytest.mark.parametrize("spelling", NOTHING)
def test_s11_no_maintenance_is_sight_and_nothing_to_see(vm: GcpSimulator, watch: Make, spelling: str) -> None:
    """In every spelling, 503 and 404 included; and what was planned before is withdrawn."""
    source = watch(UpcomingMaintenance)
    vm.plan_nothing(spelling)
    assert source.poll() == Sighting(SEEING)
    vm.plan()
    the_notice(source)
    vm.plan_nothing(spelling)
    assert source.poll() == Sighting(SEEING)


def test_a_postponed_maintenance_is_another_notice(vm: GcpSimulator, watch: Make, clock: ManualClock) -> None:
    """The earlier one is gone, so that it is withdrawn."""
    source = watch(UpcomingMaintenance)
    vm.plan(3600)
    first = the_notice(source)
    vm.plan(7200)
    second = the_notice(source)
    assert (first.id == second.id, second.deadline) == (False, clock.monotonic() + 7200)


def test_maintenance_that_begins_is_now(vm: GcpSimulator, watch: Make, clock: ManualClock) -> None:
    """The same notice, with an earlier deadline."""
    source = watch(UpcomingMaintenance)
    vm.plan(3600)
    first = the_notice(source)
    vm.plan(3600, status="ONGOING")
    second = the_notice(source)
    assert (second.id, second.deadline) == (first.id, clock.monotonic())


def test_a_vm_that_is_moved_has_nothing_to_fear(vm: GcpSimulator, watch: Make) -> None:
    """Its own policy says so; no spot VM's does, and none's with a GPU."""
    vm.put("instance/scheduling/on-host-maintenance", b"MIGRATE")
    vm.plan(3600)
    assert brief(the_notice(watch(UpcomingMaintenance)))[:2] == (NoticeKind.MIGRATE, Severity.ADVISORY)


@pytest.mark.parametrize("status", ["PENDING", "ONGOING"])
def test_a_policy_that_cannot_be_read_for_a_moment_ends_nothing(
    vm: GcpSimulator, watch: Make, status: str
) -> None:
    """503 comes around maintenance: a VM that is moved must not be ended because of one."""
    vm.put("instance/scheduling/on-host-maintenance", b"MIGRATE")
    vm.plan(3600, status=status)
    vm.fault("503", count=1, path="on-host-maintenance")
    source = watch(UpcomingMaintenance)
    blind = source.poll()
    assert (blind.health.reason, blind.notices) == ("server-error", ())
    moved = the_notice(source)
    assert brief(moved)[:2] == (NoticeKind.MIGRATE, Severity.ADVISORY)
    vm.fault("503", count=1, path="on-host-maintenance")
    assert the_notice(source) == moved


def test_a_policy_that_is_never_read_hides_no_end(vm: GcpSimulator, watch: Make) -> None:
    """It is looked for three times; when it is read at last, what was told in vain is withdrawn by its id."""
    vm.put("instance/scheduling/on-host-maintenance", b"MIGRATE")
    vm.plan(3600)
    vm.fault("503", path="on-host-maintenance")
    source = watch(UpcomingMaintenance)
    assert [source.poll().notices for _ in range(3)] == [()] * 3
    feared = the_notice(source)
    assert feared.severity is Severity.LATER
    vm.clear()
    vm.plan(3600)
    assert the_notice(source).id != feared.id


def test_maintenance_found_within_its_window_ends_nothing_until_it_begins(
    vm: GcpSimulator, watch: Make, clock: ManualClock
) -> None:
    """A window lasts hours: each run would be ended at its start. What was expected before stays what it was."""
    vm.plan(3600)
    before = watch(UpcomingMaintenance)
    expected = the_notice(before)
    clock.advance(3600 + 1800)
    vm.plan(-1800)
    assert the_notice(before) == expected
    source = watch(UpcomingMaintenance)
    found = the_notice(source)
    assert (found.severity, found.detail.partition(": ")[2]) == (
        Severity.ADVISORY,
        "it may begin at any moment",
    )
    vm.plan(-1800, status="ONGOING")
    for one in (source, before):
        begun = the_notice(one)
        assert (begun.severity, begun.deadline) == (Severity.LATER, clock.monotonic())
        assert begun.id != expected.id  # which may have had its end, and was outlived


@pytest.mark.parametrize(("skew", "left"), [(0, 3600), (60, 3540), (-60, 3660), (3700, 0)])
def test_s18_a_clock_that_is_off_moves_a_deadline_by_as_much_and_never_back(
    vm: GcpSimulator, watch: Make, clock: ManualClock, skew: float, left: float
) -> None:
    """Put right between two looks, it only moves it earlier."""
    vm.plan(3600)
    clock.step_wall(skew)
    source = watch(UpcomingMaintenance)
    assert the_notice(source).deadline == clock.monotonic() + left
    clock.step_wall(-skew)
    assert the_notice(source).deadline == clock.monotonic() + min(left, 3600)


def test_s18_a_clock_that_is_hours_ahead_ends_nothing_and_is_put_right(
    vm: GcpSimulator, watch: Make, clock: ManualClock
) -> None:
    vm.plan(3600)
    clock.step_wall(7200)
    source = watch(UpcomingMaintenance)
    assert the_notice(source).severity is Severity.ADVISORY
    clock.step_wall(-7200)
    assert brief(the_notice(source)) == (NoticeKind.MAINTENANCE, Severity.LATER, 3600)


# --- stops --------------------------------------------------------------------------------------------------


def test_without_graceful_shutdown_the_source_sees_nothing(vm: GcpSimulator, watch: Make) -> None:
    """404, and then the word for idle."""
    source = watch(StopState)
    assert source.poll() == Sighting(SEEING)
    vm.put("instance/shutdown-details/stop-state", b"UNSPECIFIED")
    assert source.poll() == Sighting(SEEING)


def test_a_stop_that_is_asked_for_is_the_end_at_the_time_it_gives(
    vm: GcpSimulator, watch: Make, clock: ManualClock
) -> None:
    """Counted from the request; what follows is the operating system's shutdown, of which nobody knows the length."""
    source = watch(StopState)
    source.poll()
    vm.ask_to_stop(600)
    clock.advance(10)
    first = the_notice(source)
    assert (first.kind, first.severity, first.window) == (NoticeKind.STOP, Severity.TERMINAL, 600)
    assert first.deadline == clock.monotonic() + 590
    clock.advance(10)
    assert the_notice(source) is first
    vm.put("instance/shutdown-details/stop-state", b"STOPPING")
    assert brief(the_notice(source)) == (NoticeKind.STOP, Severity.TERMINAL, 30)


@pytest.mark.parametrize(
    ("most", "asked", "left"),
    [
        (b"600", None, 600),
        (b"600s", b"soon", 600),
        (b"7200s", None, 3600),
        (None, b"2026-11-20T10:00:00Z", 30),
        (b"soon", None, 30),
        (b"60s", b"2026-11-20T08:00:00Z", 0),
        (b"60s", b"2026-11-20T12:00:00Z", 60),
    ],
)
def test_a_stop_of_which_not_all_can_be_read(
    vm: GcpSimulator, watch: Make, most: bytes | None, asked: bytes | None, left: float
) -> None:
    """30 s where nobody says more, and never more than was asked for."""
    for name, body in (("max-duration", most), ("request-timestamp", asked)):
        if body is not None:
            vm.put(f"instance/shutdown-details/{name}", body)
    vm.put("instance/shutdown-details/stop-state", b"PENDING_STOP")
    notice = the_notice(watch(StopState))
    assert notice.deadline - notice.seen_at == left


def test_a_stop_that_is_called_off_is_withdrawn(vm: GcpSimulator, watch: Make) -> None:
    source = watch(StopState)
    vm.ask_to_stop()
    the_notice(source)
    vm.put("instance/shutdown-details/stop-state", b"UNSPECIFIED")
    assert source.poll() == Sighting(SEEING)


@pytest.mark.parametrize("fault", ["404", "404-unsigned"])
def test_a_stop_is_not_called_off_by_a_404(vm: GcpSimulator, watch: Make, fault: str) -> None:
    """A service that has said the word, and then once that there is no such key: the notice stands."""
    source = watch(StopState)
    vm.ask_to_stop()
    notice = the_notice(source)
    vm.fault(fault, count=1, path="stop-state")
    assert source.poll() == Sighting(SEEING, (notice,))
    assert the_notice(source) == notice


# --- all of them --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sort", ALL)
def test_they_are_sources_of_their_own_cadence_and_withdraw(watch: Make, sort: type[GcpSource]) -> None:
    source = watch(sort)
    assert source.name.startswith("gcp instance/")
    assert (source.interval, source.withdraws) == (10.0, True)


@pytest.mark.parametrize("sort", ALL)
@pytest.mark.parametrize("fault", BLIND)
def test_s17_every_fault_is_blindness_by_its_name_and_ends_with_it(
    vm: GcpSimulator, watch: Make, sort: type[GcpSource], fault: str
) -> None:
    """Never "nothing is planned", and never a notice."""
    vm.plan_nothing("empty")
    vm.put("instance/shutdown-details/stop-state", b"UNSPECIFIED")
    source = watch(sort, timeout=IMPATIENT if BLIND[fault] == "timeout" else 10.0)
    vm.fault(fault, count=2)
    sighting = source.poll()
    assert_blind(sighting, fault, BLIND[fault])
    vm._faults.clear()
    assert source.poll() == Sighting(SEEING)


def test_gke_hides_maintenance_and_only_its_event_says_so(
    simulate_gcp: SimulateGcp, clock: ManualClock
) -> None:
    """Absence is blindness where every VM has the key, and "not told" where not every VM is."""
    vm = simulate_gcp(clock, gke=True)
    reasons = []
    for sort in ALL:
        source = sort(GcpMetadata(vm.endpoint, timeout=10), clock)
        reasons.append(source.poll().health.reason)
        source.close()
    assert reasons == ["missing-key", "", ""]
