"""GCP's notice over real sockets, scenario by scenario, against the simulated VM."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spotguard.providers.clock import Clock
from spotguard.providers.gcp import LONGEST, SOURCE, WINDOW, PreemptedAtOnce, Preemption
from spotguard.providers.gcp_hanging import HANG, RETRY
from spotguard.providers.gcp_metadata import GcpMetadata
from spotguard.providers.health import SEEING, Sight
from spotguard.providers.notice import Notice, NoticeKind, NoticeSource, Severity, Sighting
from spotguard.providers.simulator.faults import REDIRECTED
from spotguard.providers.simulator.gcp import GcpSimulator
from spotguard.providers.simulator.server import LoopbackServer, Reply, Request
from tests.fakes.clock import ManualClock
from tests.fixtures_simulator import SimulateGcp
from tests.providers import gcp_looking
from tests.providers.blindness import assert_blind
from tests.providers.gcp_looking import Looking, at_once, plainly
from tests.providers.looking import IMPATIENT

HELD = f"timeout_sec={HANG:.0f}"


@pytest.fixture
def vm(simulate_gcp: SimulateGcp, clock: ManualClock) -> GcpSimulator:
    """A simulated VM on the clock by hand."""
    return simulate_gcp(clock)


@pytest.fixture
def source(vm: GcpSimulator) -> Iterator[PreemptedAtOnce]:
    """The hanging GET."""
    with at_once(vm) as source:
        yield source


def the_notice(sighting: Sighting) -> Notice:
    assert sighting.health.seeing, sighting.health
    (notice,) = sighting.notices
    return notice


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


def test_without_an_etag_nothing_is_held(clock: ManualClock) -> None:
    """A request that waits without one may wait for a change that has been."""
    paths = []

    def answer(request: Request) -> Reply:
        paths.append(request.path)
        return Reply(200, b"FALSE", {"Metadata-Flavor": "Google"})

    server = LoopbackServer(answer, clock)
    source = PreemptedAtOnce(GcpMetadata(server.start(), timeout=10), clock, Preemption(clock))
    for _ in range(3):
        health = source.poll().health
        assert (health.sight, source.interval) == (Sight.SEEING, 1.0)
    source.close()
    server.stop()
    assert health.detail == "answers have no ETag: asked every 1 s"
    assert paths == ["/computeMetadata/v1/instance/preempted"] * 3


# --- the plain GET beside it ----------------------------------------------------------------------------------


def test_a_silently_dead_connection_hides_no_notice(vm: GcpSimulator, clock: ManualClock) -> None:
    """The plain GET sees it on another connection, ten seconds later at most, and it is one notice for both, with
    the deadline of the first sight."""
    preemption = Preemption(clock)
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
    preemption = Preemption(clock)
    with at_once(vm, preemption=preemption) as hanging, plainly(vm, preemption=preemption) as plain:
        vm.preempt()
        first = the_notice(hanging.poll())
        clock.advance(9)
        assert the_notice(plain.poll()) is first


@pytest.mark.parametrize("skew", [-3600, -60, 60, 3600])
def test_s18_a_clock_that_is_off_moves_nothing(
    vm: GcpSimulator, source: PreemptedAtOnce, clock: ManualClock, skew: float
) -> None:
    """There is no time in the notice: the window is counted from the first sight, and only forwards."""
    vm.preempt()
    first = the_notice(source.poll())
    clock.step_wall(skew)
    vm.fault("etag")
    assert the_notice(source.poll()) is first
    assert first.deadline == clock.monotonic() + 30


# --- how long the warning is ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "window"),
    [(None, WINDOW), (120, 120), (150, LONGEST), (3600, LONGEST), (30, 30), (5, 30), (0, 30)],
)
def test_the_window_is_30_seconds_unless_the_user_says_more(
    vm: GcpSimulator, clock: ManualClock, said: float | None, window: float
) -> None:
    """The VM was made with a notice duration, of which the guest is told nothing. Less than 30 is the agent's to cut."""
    vm.preempt()
    with at_once(vm, preemption=Preemption(clock, said)) as source:
        notice = the_notice(source.poll())
    assert (notice.window, notice.deadline) == (window, clock.monotonic() + window)


@pytest.mark.parametrize(
    ("key", "value", "window"),
    [
        ("preemption-notice-duration", b"120s", 120),
        ("preemption-notice-duration", b"120", 120),
        ("preemption-notice-duration", b"0s", 30),
        ("preemption-notice-duration/seconds", b"120", 120),
        ("preemption-notice-duration", b"soon", 30),
        ("provisioning-model", b"SPOT", 30),
    ],
)
def test_a_notice_duration_that_the_service_tells_is_used(
    vm: GcpSimulator, clock: ManualClock, key: str, value: bytes, window: float
) -> None:
    """No page says that it does. It is asked for once; the user's own word is stronger."""
    vm.put(f"instance/scheduling/{key}", value)
    believing, told = Preemption(clock), Preemption(clock, 30)
    for preemption in (believing, told):
        with plainly(vm, preemption=preemption) as source:
            assert [source.poll() for _ in range(3)] == [Sighting(SEEING)] * 3
    assert vm.count(path="recursive=true") == 2
    assert believing.seen().window == window
    assert told.seen().window == 30


def test_a_notice_duration_is_asked_for_until_there_is_an_answer_and_blinds_nobody(vm: GcpSimulator) -> None:
    """It is no terminal key."""
    vm.fault("503", count=2, path="scheduling")
    with plainly(vm) as source:
        assert [source.poll() for _ in range(5)] == [Sighting(SEEING)] * 5
    assert vm.count(path="recursive=true") == 3


def test_the_notice_does_not_wait_for_its_duration(vm: GcpSimulator) -> None:
    """It is not asked for any more, and 30 s are believed in."""
    vm.preempt()
    with plainly(vm) as source:
        assert the_notice(source.poll()).window == 30
    assert vm.count(path="recursive=true") == 0


# --- S17: what goes wrong -------------------------------------------------------------------------------------

BLIND = gcp_looking.BLIND | {"404": "missing-key"}


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
    vm: GcpSimulator, source: PreemptedAtOnce, status: int, body: bytes, notice: bool, safe: bool
) -> None:
    """A notice is believed under any status; anything else is blindness."""
    vm.put("instance/preempted", body, status=status)
    sighting = source.poll()
    assert bool(sighting.notices) is notice
    assert sighting.health.seeing is (notice or (safe and status == 200))


def test_nobody_there_is_unreachable(clock: ManualClock) -> None:
    """As on a laptop; the advice says how to go without."""
    source = PreemptedAtOnce(GcpMetadata("http://127.0.0.1:9"), clock, Preemption(clock))
    health = source.poll().health
    source.close()
    assert (health.sight, health.reason) == (Sight.BLIND, "unreachable")
    assert "--provider none" in health.advice


def test_a_bug_makes_blind_and_not_dead(vm: GcpSimulator, clock: Clock) -> None:
    """`poll` never raises: an agent that dies is blind for good."""

    class Broken(GcpMetadata):
        def get(self, path: str, *, timeout: float | None = None) -> None:  # type: ignore[override]
            raise RuntimeError("a bug")

    source = PreemptedAtOnce(Broken(vm.endpoint), clock, Preemption(clock))
    health = source.poll().health
    source.close()
    assert (health.sight, health.detail) == (Sight.BLIND, "RuntimeError: a bug")


def test_they_are_sources_as_the_agent_knows_them(vm: GcpSimulator) -> None:
    """Their names, and that nothing they show is ever withdrawn."""
    with at_once(vm) as hanging, plainly(vm) as plain:
        sources: list[NoticeSource] = [hanging, plain]
        assert [source.name for source in sources] == [SOURCE, f"{SOURCE}, plain GET"]
        assert [source.withdraws for source in sources] == [False, False]
