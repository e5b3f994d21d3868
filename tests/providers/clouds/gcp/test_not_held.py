"""A service that does not hold requests, or holds them for ever, hides no notice: plain GETs see it too."""

from __future__ import annotations

from contextlib import closing

import pytest
from responses import RequestsMock

from spotguard.providers.clouds.gcp.long_poll import HANG, RETRY
from spotguard.providers.clouds.gcp.metadata import GcpMetadata
from spotguard.providers.clouds.gcp.preempted import KEY, SOURCE, PreemptedAtOnce, PreemptedState
from spotguard.providers.health import SEEING, Sight
from spotguard.providers.notice import Sighting
from spotguard.providers.simulator.gcp.service import GcpSimulator
from tests.fakes.clock import ManualClock
from tests.providers.clouds.canned import CANNED, GCP, GOOGLE
from tests.providers.clouds.gcp.looking import HELD, Looking, at_once, plainly, the_notice
from tests.providers.clouds.looking import IMPATIENT

# --- a service that does not hold requests --------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["held-not", "held-503", "etag"])
def test_a_service_that_holds_nothing_is_asked_once_a_second(
    vm: GcpSimulator, source: PreemptedAtOnce, clock: ManualClock, fault: str
) -> None:
    """The gap doubles up to that, is told, and never is there a spin; a notice is seen at the next look."""
    vm.fault(fault)
    source.poll()
    gaps = []
    for _ in range(8):
        sighting = source.poll()
        assert (sighting.health.sight, sighting.notices) == (Sight.SEEING, ())
        gaps.append(source.interval)
        clock.advance(source.interval)
    assert gaps == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    assert sighting.health.detail == "hanging GETs are not held: asked every 1 s"
    vm.preempt()
    the_notice(source.poll())


def test_a_service_that_holds_requests_again_sets_the_pace_again(
    vm: GcpSimulator, source: PreemptedAtOnce, clock: ManualClock
) -> None:
    """As soon as one was held for its time."""
    vm.fault("held-not", count=9)
    for _ in range(10):
        source.poll()
    assert source.interval == 1.0
    looking = Looking(source)
    assert vm.wait_for_held()
    clock.advance(HANG)
    assert looking.seen() == Sighting(SEEING)
    assert source.interval == RETRY


def test_a_hanging_get_that_is_never_answered_is_not_tried_again_for_a_while(
    vm: GcpSimulator, clock: ManualClock
) -> None:
    """Plain ones see all the same, once a second; later it is tried again."""
    with at_once(vm, longest=IMPATIENT) as source:
        source.poll()
        vm.fault("held-for-ever")
        for _ in range(3):
            sighting = source.poll()
            assert (sighting.health.sight, source.interval) == (Sight.SEEING, 1.0)
        assert sighting.health.detail == "a hanging GET was not answered: asked every 1 s for now"
        assert vm.count(path=HELD) == 1
        clock.advance(300)
        vm.preempt()
        the_notice(source.poll())
        assert vm.count(path=HELD) == 2


def test_without_an_etag_nothing_is_held(canned: RequestsMock, clock: ManualClock) -> None:
    """A request that waits without one may wait for a change that has been."""
    canned.get(GCP + KEY, body=b"FALSE", headers=GOOGLE)
    with closing(PreemptedAtOnce(GcpMetadata(CANNED), clock, PreemptedState(clock))) as source:
        for _ in range(3):
            health = source.poll().health
            assert (health.sight, source.interval) == (Sight.SEEING, 1.0)
    assert health.detail == "answers have no ETag: asked every 1 s"
    assert [call.request.url for call in canned.calls] == [GCP + KEY] * 3


# --- the plain GET beside it ----------------------------------------------------------------------------------


def test_a_silently_dead_connection_hides_no_notice(vm: GcpSimulator, clock: ManualClock) -> None:
    """The plain GET sees it on another connection, ten seconds later at most, and it is one notice for both, with
    the deadline of the first sight."""
    preemption = PreemptedState(clock)
    with at_once(vm, preemption=preemption) as hanging, plainly(vm, preemption=preemption) as plain:
        assert (plain.interval, plain.name) == (10.0, f"{SOURCE}, plain GET")
        hanging.poll()
        plain.poll()
        vm.fault("held-for-ever", count=1)
        looking = Looking(hanging)
        assert vm.wait_for(1, path=HELD, status=0)
        vm.preempt()
        first = the_notice(plain.poll())
        clock.advance(10)
        assert the_notice(plain.poll()) is first
        vm.stop()
        looking.seen()
        vm.start()


def test_both_show_one_notice(vm: GcpSimulator, clock: ManualClock) -> None:
    """Whoever looks second shows the first one's."""
    preemption = PreemptedState(clock)
    with at_once(vm, preemption=preemption) as hanging, plainly(vm, preemption=preemption) as plain:
        vm.preempt()
        first = the_notice(hanging.poll())
        clock.advance(9)
        assert the_notice(plain.poll()) is first
