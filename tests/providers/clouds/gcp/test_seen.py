"""GCP's notice is seen whenever it comes, over real sockets, and nothing else is taken for one."""

from __future__ import annotations

from spotguard.providers.clouds.gcp.long_poll import HANG, RETRY
from spotguard.providers.clouds.gcp.preempted import PreemptedAtOnce
from spotguard.providers.health import SEEING
from spotguard.providers.notice import Notice, NoticeKind, Severity, Sighting
from spotguard.providers.simulator.gcp.service import GcpSimulator
from tests.fakes.clock import ManualClock
from tests.providers.clouds.gcp.looking import HELD, Looking, the_notice

# --- S8: it is seen, whenever it comes ----------------------------------------------------------------------


def test_s8a_a_notice_in_an_idle_hanging_get_is_seen_in_its_instant(
    vm: GcpSimulator, source: PreemptedAtOnce, clock: ManualClock
) -> None:
    """The clock stands still meanwhile."""
    assert source.poll() == Sighting(SEEING)
    looking = Looking(source)
    assert vm.wait_for_held()
    vm.preempt()
    notice = the_notice(looking.seen())
    assert notice == Notice(
        "gcp/preempted",
        NoticeKind.PREEMPT,
        "gcp instance/preempted",
        clock.monotonic() + 30,
        clock.monotonic(),
        Severity.TERMINAL,
        "preempted: TRUE",
        30.0,
    )


def test_s8b_a_notice_between_two_gets_is_seen_by_the_next(vm: GcpSimulator, source: PreemptedAtOnce) -> None:
    """The next one hangs, and is answered at once."""
    source.poll()
    vm.preempt()
    the_notice(source.poll())
    assert vm.count(path=HELD) == 1


def test_s8c_a_notice_before_the_start_is_seen_by_the_first_get(
    vm: GcpSimulator, source: PreemptedAtOnce
) -> None:
    """A plain one: a hanging one would hang."""
    vm.preempt()
    the_notice(source.poll())
    assert vm.count() == 1


def test_s8d_a_notice_in_a_storm_is_seen_when_the_storm_is_over(
    vm: GcpSimulator, source: PreemptedAtOnce, clock: ManualClock
) -> None:
    """The 503 meets a request that is held, and all that follow it."""
    source.poll()
    looking = Looking(source)
    assert vm.wait_for_held()
    vm.fault("503", seconds=5)
    assert looking.seen().health.reason == "server-error"
    vm.preempt()
    for _ in range(20):
        assert source.poll().health.reason == "server-error"
        assert source.interval == RETRY
    clock.advance(5)
    the_notice(source.poll())


def test_s8d_one_503_in_a_held_request_is_no_blindness(vm: GcpSimulator, source: PreemptedAtOnce) -> None:
    """A plain GET answers in its place, in the same look."""
    source.poll()
    looking = Looking(source)
    assert vm.wait_for_held()
    vm.fault("503", count=1)
    assert looking.seen() == Sighting(SEEING)
    assert vm.count(path="instance/preempted", status=200) == 2


def test_a_held_request_that_is_reset_is_sent_again_and_nothing_is_lost(
    vm: GcpSimulator, source: PreemptedAtOnce
) -> None:
    """As a connection may be when the VM is moved to another host."""
    source.poll()
    looking = Looking(source)
    assert vm.wait_for_held()
    vm.fault("reset", count=1)
    assert vm.wait_for_held()
    vm.preempt()
    the_notice(looking.seen())


# --- S9: no false alarm -------------------------------------------------------------------------------------


def test_s9_a_hang_that_ends_with_nothing_new_is_no_news(
    vm: GcpSimulator, source: PreemptedAtOnce, clock: ManualClock
) -> None:
    """The same value under the same ETag, with 200; the next request follows at once."""
    source.poll()
    for count in (1, 2, 3):
        looking = Looking(source)
        assert vm.wait_for_held()
        clock.advance(HANG)
        assert looking.seen() == Sighting(SEEING)
        assert vm.count(path=HELD, status=200) == count
        assert source.interval == RETRY


def test_s9_an_etag_that_changes_under_the_same_value_is_no_notice(
    vm: GcpSimulator, source: PreemptedAtOnce
) -> None:
    """Nor does it hide one."""
    vm.fault("etag")
    assert [source.poll() for _ in range(3)] == [Sighting(SEEING)] * 3
    vm.preempt()
    the_notice(source.poll())


def test_a_notice_stays_the_same_for_ever(
    vm: GcpSimulator, source: PreemptedAtOnce, clock: ManualClock
) -> None:
    """Read again, also under another ETag."""
    vm.preempt()
    first = the_notice(source.poll())
    vm.fault("etag")
    for seconds in (1, 60, 3600):
        clock.advance(seconds)
        assert the_notice(source.poll()) is first
