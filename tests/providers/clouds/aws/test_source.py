"""What holds of every key of AWS's that is watched: S1, S2, S7, S17, key by key."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing

import pytest
from responses import RequestsMock

from spotguard.providers.clouds.aws.autoscaling import TargetState
from spotguard.providers.clouds.aws.events import AwsScheduledEvents, Rebalance
from spotguard.providers.clouds.aws.imds import AwsImds
from spotguard.providers.clouds.aws.source import ROOT, AwsSource
from spotguard.providers.clouds.aws.spot import InstanceAction, TerminationTime
from spotguard.providers.health import SEEING, Sight
from spotguard.providers.notice import Notice, NoticeSource, Severity, Sighting
from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.fakes.clock import ManualClock
from tests.providers.clouds.canned import CANNED, an_instance
from tests.providers.clouds.looking import BLIND, IMPATIENT, KEYS, MakeSource
from tests.providers.clouds.looking import the_notice as the_notice_now

EVERY = pytest.mark.parametrize("kind", KEYS, ids=lambda kind: kind.key)

#: What happens to the instance, so that the key of each source shows it.
HAPPEN: dict[type[AwsSource], Callable[[AwsSimulator], object]] = {
    InstanceAction: AwsSimulator.preempt,
    TerminationTime: lambda instance: instance.termination_time("valid"),
    Rebalance: AwsSimulator.rebalance,
    AwsScheduledEvents: AwsSimulator.maintenance,
    TargetState: lambda instance: instance.autoscaling("Terminated"),
}


def the_notice(source: AwsSource) -> Notice:
    """At the second look: one of them leaves the first to another."""
    source.poll()
    return the_notice_now(source)


@pytest.mark.parametrize(
    ("kind", "interval", "withdraws", "severity"),
    [
        (InstanceAction, 1.0, False, Severity.TERMINAL),
        (TerminationTime, 10.0, False, Severity.TERMINAL),
        (Rebalance, 10.0, False, Severity.ADVISORY),
        (AwsScheduledEvents, 10.0, True, Severity.LATER),
        (TargetState, 10.0, True, Severity.TERMINAL),
    ],
)
def test_each_is_a_source_with_a_name_a_cadence_and_a_severity(
    instance: AwsSimulator,
    watch: MakeSource,
    kind: type[AwsSource],
    interval: float,
    withdraws: bool,
    severity: Severity,
) -> None:
    """What ends the machine with a time of its own is asked for every second, the others every ten."""
    source = watch(instance, kind)
    as_known: NoticeSource = source
    assert as_known is source
    assert (source.name, source.interval, source.withdraws) == (f"aws {kind.key}", interval, withdraws)
    HAPPEN[kind](instance)
    notice = the_notice(source)
    assert (notice.severity, notice.source) == (severity, source.name)


@EVERY
def test_nothing_is_nothing_and_one_request(
    instance: AwsSimulator, watch: MakeSource, kind: type[AwsSource]
) -> None:
    """After the first look, which also has a token and a key that must be there."""
    source = watch(instance, kind)
    for _ in range(3):
        assert source.poll() == Sighting(SEEING)
    assert (instance.count("PUT"), instance.count("GET", ROOT + kind.key), instance.count()) == (1, 3, 5)


@EVERY
def test_s1_a_refused_token_hides_no_notice(
    instance: AwsSimulator, watch: MakeSource, kind: type[AwsSource]
) -> None:
    """Forgotten before its time, replaced within the look."""
    source = watch(instance, kind)
    source.poll()
    instance.expire_tokens()
    HAPPEN[kind](instance)
    the_notice(source)
    assert instance.count(status=401) == 1


@EVERY
def test_s2_a_hop_limit_is_named_by_each(
    instance: AwsSimulator, watch: MakeSource, kind: type[AwsSource]
) -> None:
    """With what to type; nothing is read without a token, and when it is over the notice is there."""
    HAPPEN[kind](instance)
    instance.fault("hop-limit", count=1)
    source = watch(instance, kind, timeout=IMPATIENT)
    sighting = source.poll()
    assert (sighting.notices, sighting.health.sight, sighting.health.reason) == ((), Sight.BLIND, "hop-limit")
    assert "--http-put-response-hop-limit 2" in sighting.health.advice
    assert instance.count(path=ROOT + kind.key) == 0
    the_notice(source)


@pytest.mark.parametrize("fault", [fault for fault, reason in BLIND.items() if reason != "timeout"])
@EVERY
def test_s7_s17_what_goes_wrong_at_one_key_is_its_blindness(
    instance: AwsSimulator, watch: MakeSource, kind: type[AwsSource], fault: str
) -> None:
    """By its name, never "nothing", never an exception; and the notice is there when it is over."""
    source = watch(instance, kind)
    source.poll()
    instance.fault(fault, path=kind.key)
    sighting = source.poll()
    assert (sighting.notices, sighting.health.reason) == ((), BLIND[fault])
    assert sighting.health.advice
    HAPPEN[kind](instance)
    assert source.poll().notices == ()
    instance.fault(fault, seconds=0.0)
    the_notice(source)


@EVERY
def test_s7_a_key_that_never_answers_is_blindness_of_that_key(
    instance: AwsSimulator, watch: MakeSource, kind: type[AwsSource]
) -> None:
    """The others, each on a connection of its own, see as before."""
    instance.fault("hang", path=kind.key)
    sources = {each: watch(instance, each, timeout=IMPATIENT) for each in KEYS}
    for each, source in sources.items():
        assert source.poll().health.reason == ("timeout" if each is kind else "")


@EVERY
def test_s17_bytes_that_say_nothing_are_garbage(
    instance: AwsSimulator, watch: MakeSource, kind: type[AwsSource]
) -> None:
    """Under the status of an answer."""
    source = watch(instance, kind)
    source.poll()
    instance.fault("garbage")
    sighting = source.poll()
    assert (sighting.notices, sighting.health.reason) == ((), "garbage")


@pytest.mark.parametrize("body", [b"", b"<html></html>", b"[[]]", b'{"error": "try again"}', b"\xff"])
@EVERY
def test_s17_a_200_that_holds_no_words_of_the_key_is_not_nothing(
    canned: RequestsMock, clock: ManualClock, kind: type[AwsSource], body: bytes
) -> None:
    """The status decides nothing."""
    an_instance(canned)
    canned.get(CANNED + ROOT + kind.key, body=body)
    with closing(kind(AwsImds(CANNED, clock), clock)) as source:
        sighting = source.poll()
    assert (sighting.notices, sighting.health.seeing) == ((), False)
    assert sighting.health.reason == ("wrong-server" if body.startswith(b"<") else "garbage")


@EVERY
def test_nothing_is_not_believed_of_a_server_that_is_no_instances(
    instance: AwsSimulator, watch: MakeSource, kind: type[AwsSource]
) -> None:
    """It has no key that every instance has: an absent notice, an empty list, a good word prove nothing."""
    instance.remove("instance-id")
    source = watch(instance, kind)
    assert source.poll().health.reason == "missing-key"
    quiet = {AwsScheduledEvents: b"[]", TargetState: b"InService", TerminationTime: b"none"}
    if kind in quiet:
        instance.put(kind.key, quiet[kind])
        assert source.poll().health.reason == "missing-key"
    HAPPEN[kind](instance)
    the_notice(source)


@EVERY
def test_a_bug_makes_blind_and_not_dead(
    instance: AwsSimulator, kind: type[AwsSource], clock: ManualClock
) -> None:
    """`poll` never raises: an agent that dies is blind for good."""

    class Broken(AwsImds):
        def get(self, path: str) -> None:  # type: ignore[override]
            raise RuntimeError("a bug")

    source = kind(Broken(instance.endpoint, clock), clock)
    health = source.poll().health
    source.close()
    assert (health.sight, health.detail) == (Sight.BLIND, "RuntimeError: a bug")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (InstanceAction, b'{"action": "vaporize", "time": "2026-11-20T10:02:00Z"}'),
        (AwsScheduledEvents, b'[{"Code": "instance-teleport", "NotBefore": "21 Nov 2026 10:00:00 GMT"}]'),
    ],
)
def test_a_word_newer_than_this_program_is_logged_loudly_and_once(
    canned: RequestsMock,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    kind: type[AwsSource],
    body: bytes,
) -> None:
    """With the word, for whoever reports it."""
    an_instance(canned)
    canned.get(CANNED + ROOT + kind.key, body=body)
    warnings = caplog.at_level(logging.WARNING, "spotguard")
    with closing(kind(AwsImds(CANNED, clock), clock)) as source, warnings:
        assert source.poll() == source.poll()
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith(f"aws {kind.key}: ")
    assert line.endswith("please report it")
    assert "unknown to this program" in line
