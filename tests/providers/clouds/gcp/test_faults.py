"""Whatever GCP's service does wrong is blindness by its name, and never "no notice"."""

from __future__ import annotations

from contextlib import closing

import pytest
from responses import RequestsMock

from spotguard.providers.clock import Clock
from spotguard.providers.clouds.gcp.long_poll import RETRY
from spotguard.providers.clouds.gcp.metadata import GcpMetadata
from spotguard.providers.clouds.gcp.preempted import KEY, SOURCE, PreemptedAtOnce, PreemptedState
from spotguard.providers.health import Sight
from spotguard.providers.notice import NoticeSource
from spotguard.providers.simulator.faults import REDIRECTED
from spotguard.providers.simulator.gcp.service import GcpSimulator
from tests.fakes.clock import ManualClock
from tests.fixtures_simulator import SimulateGcp
from tests.providers.clouds.blindness import assert_blind
from tests.providers.clouds.canned import CANNED, GCP, GOOGLE
from tests.providers.clouds.gcp import looking
from tests.providers.clouds.gcp.looking import at_once, plainly, the_notice
from tests.providers.clouds.looking import IMPATIENT

BLIND = looking.BLIND | {"404": "missing-key"}


@pytest.mark.parametrize("hanging", [False, True])
@pytest.mark.parametrize("fault", BLIND)
def test_s17_every_fault_is_blindness_by_its_name_and_ends_with_it(
    vm: GcpSimulator, fault: str, hanging: bool
) -> None:
    """Whether it meets the first GET or one that would hang. Never "no notice", never a notice, never an exception,
    always a way out; and the first look after it sees."""
    timeout = IMPATIENT if BLIND[fault] == "timeout" else 10.0
    with at_once(vm, timeout=timeout, longest=timeout) as source:
        if hanging:
            source.poll()
        vm.fault(fault)
        sighting = source.poll()
        assert_blind(sighting, fault, BLIND[fault])
        assert vm.endpoint in sighting.health.detail
        assert source.interval == RETRY
        vm.clear()
        vm.preempt()
        the_notice(source.poll())


def test_s17_a_redirect_is_not_followed(vm: GcpSimulator, source: PreemptedAtOnce) -> None:
    """Where it leads, nobody asks."""
    vm.fault("redirect")
    source.poll()
    assert vm.count(status=302) == 1
    assert vm.count(path=REDIRECTED) == 0


def test_s17_words_of_a_server_that_is_not_googles_are_no_notice(vm: GcpSimulator) -> None:
    """TRUE under another's name ends nobody's training, and FALSE calms nobody."""
    vm.preempt()
    with plainly(vm) as source:
        for fault in ("flavor", "foreign"):
            vm.fault(fault, count=1)
            sighting = source.poll()
            assert (sighting.notices, sighting.health.sight) == ((), Sight.WRONG_SERVER)
        the_notice(source.poll())


def test_gkes_server_is_blindness_and_says_what_to_do(simulate_gcp: SimulateGcp, clock: ManualClock) -> None:
    """It hides the key: a 404 is not "not preempted"."""
    vm = simulate_gcp(clock, gke=True)
    vm.preempt()
    with at_once(vm) as hanging, plainly(vm) as plain:
        for source in (hanging, plain):
            health = source.poll().health
            assert (health.sight, health.reason) == (Sight.BLIND, "missing-key")
            assert "hostNetwork: true" in health.advice


def test_a_missing_key_without_a_signature_is_googles_where_another_key_proves_it(
    vm: GcpSimulator, source: PreemptedAtOnce
) -> None:
    """The real service was seen not to sign some of its 404."""
    vm.fault("404-unsigned", path="preempted")
    assert source.poll().health.reason == "missing-key"
    assert vm.count(path="instance/id", status=200) == 1


@pytest.mark.parametrize("status", [200, 404, 500, 503])
@pytest.mark.parametrize(
    ("body", "notice", "safe"),
    [
        (b"TRUE", True, False),
        (b" TRUE\n", True, False),
        (b"true", True, False),
        (b"FALSE", False, True),
        (b"FALSE\n", False, True),
        (b"false", False, False),
        (b"", False, False),
        (b'"TRUE"', False, False),
        (b"NONE", False, False),
        (b"TRUE FALSE", False, False),
        (b"\xff\xfe", False, False),
    ],
)
def test_the_body_decides_and_only_its_own_false_under_200_calms(
    canned: RequestsMock, clock: ManualClock, status: int, body: bytes, notice: bool, safe: bool
) -> None:
    """A notice is believed under any status; anything else is blindness."""
    canned.get(GCP + KEY, status=status, body=body, headers=GOOGLE)
    with closing(PreemptedAtOnce(GcpMetadata(CANNED), clock, PreemptedState(clock))) as source:
        sighting = source.poll()
    assert bool(sighting.notices) is notice
    assert sighting.health.seeing is (notice or (safe and status == 200))


def test_nobody_there_is_unreachable(clock: ManualClock) -> None:
    """As on a laptop; the advice says how to go without."""
    source = PreemptedAtOnce(GcpMetadata("http://127.0.0.1:9"), clock, PreemptedState(clock))
    health = source.poll().health
    source.close()
    assert (health.sight, health.reason) == (Sight.BLIND, "unreachable")
    assert "--provider none" in health.advice


def test_a_bug_makes_blind_and_not_dead(vm: GcpSimulator, clock: Clock) -> None:
    """`poll` never raises: an agent that dies is blind for good."""

    class Broken(GcpMetadata):
        def get(self, path: str, *, timeout: float | None = None) -> None:  # type: ignore[override]
            raise RuntimeError("a bug")

    source = PreemptedAtOnce(Broken(vm.endpoint), clock, PreemptedState(clock))
    health = source.poll().health
    source.close()
    assert (health.sight, health.detail) == (Sight.BLIND, "RuntimeError: a bug")


def test_they_are_sources_as_the_agent_knows_them(vm: GcpSimulator) -> None:
    """Their names, and that nothing they show is ever withdrawn."""
    with at_once(vm) as hanging, plainly(vm) as plain:
        sources: list[NoticeSource] = [hanging, plain]
        assert [source.name for source in sources] == [SOURCE, f"{SOURCE}, plain GET"]
        assert [source.withdraws for source in sources] == [False, False]
