"""AWS's notice, scenario by scenario: over real sockets against the simulated instance, and what is made of any answer."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
from responses import RequestsMock

from spotguard.providers.clouds.aws.imds import AwsImds
from spotguard.providers.clouds.aws.spot import PATH, InstanceAction
from spotguard.providers.health import SEEING, Sight
from spotguard.providers.notice import NoticeKind, NoticeSource, Sighting
from spotguard.providers.simulator.aws.service import AwsSimulator
from spotguard.providers.simulator.faults import REDIRECTED
from tests.fakes.clock import ManualClock
from tests.fixtures_simulator import SimulateAws
from tests.providers.clouds.blindness import assert_blind
from tests.providers.clouds.canned import CANNED, an_instance
from tests.providers.clouds.looking import BLIND, IMPATIENT, MakeSource, the_notice


def test_s3_an_absent_key_is_no_notice_and_seeing(instance: AwsSimulator, watch: MakeSource) -> None:
    """It is a 404 with a page as its body."""
    assert watch(instance).poll() == Sighting(SEEING, ())
    assert instance.count("GET", PATH, 404) == 1


@pytest.mark.parametrize(("ahead", "left"), [(120, 120), (108, 108), (5, 5), (0, 0), (-3, 0)])
def test_s3_the_deadline_is_the_time_aws_says(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock, ahead: float, left: float
) -> None:
    """Past by seconds is now."""
    source = watch(instance)
    source.poll()
    instance.preempt(ahead)
    assert the_notice(source).deadline == clock.monotonic() + left


def test_s3_a_notice_that_is_read_again_is_the_same(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock
) -> None:
    """Its id, its deadline and the instant it was first seen stay; so they do long after the deadline."""
    source = watch(instance)
    source.poll()
    instance.preempt()
    first = the_notice(source)
    for seconds in (1, 60, 60, 3600):
        clock.advance(seconds)
        assert the_notice(source) is first


def test_s3_a_notice_that_stands_at_the_start_is_seen(instance: AwsSimulator, watch: MakeSource) -> None:
    """It came before the agent did."""
    instance.preempt(90)
    assert the_notice(watch(instance)).window == 120


def test_s3_a_stale_value_at_the_start_is_no_notice_until_a_new_one_comes(
    instance: AwsSimulator, watch: MakeSource
) -> None:
    """EC2 keeps the value of an interruption that failed; health says so."""
    instance.preempt(-1800)
    source = watch(instance)
    sighting = source.poll()
    assert (sighting.notices, sighting.health.sight) == ((), Sight.SEEING)
    assert sighting.health.detail.startswith("stale, no notice: terminate at ")
    instance.preempt()
    the_notice(source)


def test_s3_a_notice_that_appears_is_never_stale(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock
) -> None:
    """The key was absent a look ago: an hour-old time on it is our clock's fault, not an old notice."""
    source = watch(instance)
    source.poll()
    clock.step_wall(3600)
    instance.preempt(120, skew=-3600)
    assert the_notice(source).deadline == clock.monotonic()


@pytest.mark.parametrize(
    ("action", "kind", "left"),
    [
        ("terminate", NoticeKind.TERMINATE, 120),
        ("stop", NoticeKind.STOP, 120),
        ("hibernate", NoticeKind.HIBERNATE, 0),
    ],
)
def test_s4_hibernation_has_no_window(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock, action: str, kind: NoticeKind, left: float
) -> None:
    """It begins with the notice; the other two leave two minutes."""
    instance.preempt(action=action)
    notice = the_notice(watch(instance))
    assert (notice.kind, notice.window, notice.deadline) == (kind, left, clock.monotonic() + left)


def test_s6_a_rebalance_recommendation_is_no_notice(instance: AwsSimulator, watch: MakeSource) -> None:
    """It comes first, or alone, and more often without an interruption than with one."""
    source = watch(instance)
    instance.rebalance()
    assert source.poll().notices == ()
    instance.preempt()
    the_notice(source)


@pytest.mark.parametrize(("skew", "left"), [(60, 120), (-60, 60), (3600, 120), (-130, 0)])
def test_s18_a_clock_that_is_off_makes_no_window_longer_than_aws_gives(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock, skew: float, left: float
) -> None:
    """And a clock put right later moves the deadline only to an earlier instant."""
    source = watch(instance)
    source.poll()
    instance.preempt(120, skew=skew)
    first = the_notice(source)
    assert first.deadline == clock.monotonic() + left
    clock.step_wall(-3600)
    assert the_notice(source) is first
    clock.step_wall(3 * 3600)
    assert the_notice(source).deadline == clock.monotonic()
    assert the_notice(source).seen_at == first.seen_at


# --- S7, S17: what goes wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize("with_token", [False, True])
@pytest.mark.parametrize("fault", BLIND)
def test_s7_s17_every_fault_is_blindness_by_its_name_and_ends_with_it(
    instance: AwsSimulator, watch: MakeSource, fault: str, with_token: bool
) -> None:
    """Whether it meets the token or the key. Never "no notice", never an exception, always a way out; and the
    first look after it sees."""
    source = watch(instance, timeout=IMPATIENT if BLIND[fault] == "timeout" else 5.0)
    if with_token:
        source.poll()
    instance.fault(fault)
    sighting = source.poll()
    assert_blind(sighting, fault, BLIND[fault], answered=404 if with_token else 200)
    assert instance.endpoint in sighting.health.detail or PATH in sighting.health.detail
    instance.clear()
    instance.preempt()
    the_notice(source)


@pytest.mark.parametrize(("with_token", "reason"), [(False, "wrong-server"), (True, "garbage")])
def test_s17_bytes_that_say_nothing_are_no_good_news(
    instance: AwsSimulator, watch: MakeSource, with_token: bool, reason: str
) -> None:
    """As a token, they are somebody else's; as a notice, they cannot be read."""
    source = watch(instance)
    if with_token:
        source.poll()
    instance.fault("garbage")
    sighting = source.poll()
    assert (sighting.notices, sighting.health.reason) == ((), reason)
    instance.clear()
    instance.preempt()
    the_notice(source)


def test_s17_a_foreign_signature_hides_no_notice(instance: AwsSimulator, watch: MakeSource) -> None:
    """AWS documents no header that must be there: the token and the body decide."""
    instance.fault("foreign")
    instance.preempt()
    the_notice(watch(instance))


def test_s7_a_burst_of_503_is_survived(instance: AwsSimulator, watch: MakeSource) -> None:
    """The watcher of AWS itself died of them (aws-node-termination-handler#916)."""
    source = watch(instance)
    instance.fault("503", count=3)
    reasons = [source.poll().health.reason for _ in range(4)]
    assert reasons == ["server-error"] * 3 + [""]


def test_s17_a_redirect_is_not_followed(instance: AwsSimulator, watch: MakeSource) -> None:
    """Where it leads, nobody asks."""
    source = watch(instance)
    source.poll()
    instance.fault("redirect")
    source.poll()
    assert instance.count(status=302) == 1
    assert instance.count(path=REDIRECTED) == 0


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"<html><title>Sign in</title></html>", "wrong-server"),
        (b"", "garbage"),
        (b"terminate", "garbage"),
        (b"{}", "garbage"),
        (b'{"time": "2026-11-20T10:02:00Z"}', "garbage"),
        (b'["terminate"]', "garbage"),
        (b"\xff\xfe\x00", "garbage"),
    ],
)
def test_s17_a_200_without_an_action_is_not_no_notice(
    canned: RequestsMock, clock: ManualClock, body: bytes, reason: str
) -> None:
    """The status decides nothing."""
    an_instance(canned)
    canned.get(CANNED + PATH, body=body)
    with closing(InstanceAction(AwsImds(CANNED, clock), clock)) as source:
        sighting = source.poll()
    assert (sighting.notices, sighting.health.reason) == ((), reason)
    assert not sighting.health.seeing


@pytest.mark.parametrize("status", [404, 500, 503])
@pytest.mark.parametrize(
    ("body", "seen"),
    [
        (b'{"action":"terminate","time":"2026-11-20T10:02:00Z"}', True),
        (b'{"action":"retry","time":"2026-11-20T10:02:00Z"}', False),
        (b'{"action":"stop"}', False),
        (b'{"error":"try again"}', False),
    ],
)
def test_a_notice_is_believed_under_any_status_where_it_is_one(
    canned: RequestsMock, clock: ManualClock, status: int, body: bytes, seen: bool
) -> None:
    """The body decides (law 5); an error's JSON that has an `action` too ends nobody's training."""
    an_instance(canned)
    canned.get(CANNED + PATH, status=status, body=body)
    with closing(InstanceAction(AwsImds(CANNED, clock), clock)) as source:
        sighting = source.poll()
    assert (bool(sighting.notices), sighting.health.seeing) == (seen, seen)


def test_nobody_there_is_unreachable(clock: ManualClock) -> None:
    """As on a laptop; the advice says how to go without."""
    source = InstanceAction(AwsImds("http://127.0.0.1:9", clock), clock)
    health = source.poll().health
    source.close()
    assert (health.sight, health.reason) == (Sight.BLIND, "unreachable")
    assert "Connection refused" in health.detail
    assert "--provider none" in health.advice


def test_a_bug_makes_blind_and_not_dead(instance: AwsSimulator, clock: ManualClock) -> None:
    """`poll` never raises: an agent that dies is blind for good."""

    class Broken(AwsImds):
        def get(self, path: str) -> None:  # type: ignore[override]
            raise RuntimeError("a bug")

    source = InstanceAction(Broken(instance.endpoint, clock), clock)
    health = source.poll().health
    source.close()
    assert (health.sight, health.detail) == (Sight.BLIND, "RuntimeError: a bug")


def test_the_whole_way_over_ipv6(simulate_aws: SimulateAws, clock: ManualClock, watch: MakeSource) -> None:
    """A token, an absent key, a notice."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 on loopback")
    instance = simulate_aws(clock, host="::1")
    assert instance.endpoint.startswith("http://[::1]:")
    source = watch(instance)
    assert source.poll().health is SEEING
    instance.preempt()
    the_notice(source)


def test_a_kept_connection_serves_as_well(
    simulate_aws: SimulateAws, clock: ManualClock, watch: MakeSource
) -> None:
    """The real service was seen to close after each answer; should it stop doing so, nothing changes."""
    instance = simulate_aws(clock, keep_alive=True)
    source = watch(instance)
    source.poll()
    instance.preempt()
    the_notice(source)


def test_it_is_a_source_as_the_agent_knows_one(instance: AwsSimulator, watch: MakeSource) -> None:
    """Its cadence, its name, and that nothing it shows is ever withdrawn."""
    source: NoticeSource = watch(instance)
    assert (source.name, source.interval, source.withdraws) == ("aws spot/instance-action", 1.0, False)
