"""IMDSv2's tokens: renewed, replaced, refused, missing; and where the service is."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest
from responses import RequestsMock

from spotguard.providers.clouds.aws.imds import (
    PROOF_PATH,
    TOKEN_HEADER,
    TOKEN_PATH,
    AwsImds,
    resolve_endpoint,
)
from spotguard.providers.clouds.aws.spot import PATH, InstanceAction
from spotguard.providers.errors import UsageError
from spotguard.providers.health import SEEING, Health, Sight
from spotguard.providers.notice import NoticeKind
from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.fakes.clock import ManualClock
from tests.fixtures_simulator import SimulateAws
from tests.providers.clouds.canned import CANNED
from tests.providers.clouds.looking import IMPATIENT, MakeSource, the_notice

TOKEN = TOKEN_HEADER.lower()


def tokens_used(simulator: AwsSimulator) -> list[str]:
    """The token of each read, in order."""
    return [seen.headers[TOKEN] for seen in simulator.requests if seen.method == "GET"]


def test_s1_one_token_serves_many_looks(instance: AwsSimulator, watch: MakeSource) -> None:
    """And each look is one request, after the first, which also reads a key that must be there."""
    source = watch(instance)
    for _ in range(5):
        assert source.poll().health is SEEING
    assert (instance.count("PUT"), instance.count("GET", PATH, 404)) == (1, 5)
    assert (instance.count("GET", PROOF_PATH, 200), instance.count()) == (1, 7)


def test_s1_a_token_is_renewed_at_half_its_life_after_the_look(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock
) -> None:
    """So that a slow PUT delays no notice; the next look carries the new one alone."""
    source = watch(instance)
    source.poll()
    clock.advance(10799)
    source.poll()
    assert instance.count("PUT") == 1
    clock.advance(1)
    assert source.poll().health is SEEING
    assert [seen.path for seen in instance.requests[-3:]] == [PATH, TOKEN_PATH, PROOF_PATH]
    source.poll()
    first, *_, last = tokens_used(instance)
    assert last != first
    assert "," not in last  # replaced: two headers of one name would arrive joined
    assert instance.count(status=401) == 0


def test_s1_a_short_life_is_taken_from_the_answer(
    simulate_aws: SimulateAws, watch: MakeSource, clock: ManualClock
) -> None:
    """A service that grants 2 s instead of six hours sees no expired token."""
    instance = simulate_aws(clock, max_ttl=2)
    source = watch(instance)
    for _ in range(10):
        assert source.poll().health is SEEING
        clock.advance(2.5)
    instance.preempt()
    the_notice(source)
    assert instance.count(status=401) == 0


def test_s1_a_refused_token_is_replaced_within_the_look(instance: AwsSimulator, watch: MakeSource) -> None:
    """The service forgot it before its time, just as the notice came: the notice is seen by this look."""
    source = watch(instance)
    source.poll()
    instance.expire_tokens()
    instance.preempt()
    assert the_notice(source).kind is NoticeKind.TERMINATE
    assert [(seen.method, seen.status) for seen in instance.requests[-3:]] == [
        ("GET", 401),
        ("PUT", 200),
        ("GET", 200),
    ]
    old, new = tokens_used(instance)[-2:]
    assert old != new
    assert "," not in new


def test_s1_a_fresh_token_that_is_refused_is_unauthorized(instance: AwsSimulator, watch: MakeSource) -> None:
    """Two tries and no more: hammering would be throttled. When it ends, it ends at once."""
    source = watch(instance)
    instance.fault("401")
    health = source.poll().health
    assert (health.sight, health.reason) == (Sight.BLIND, "unauthorized")
    assert (instance.count("PUT"), instance.count("GET")) == (2, 2)
    instance.clear()
    assert source.poll().health is SEEING


def test_s1_a_burst_of_401_costs_no_look(instance: AwsSimulator, watch: MakeSource) -> None:
    """One 401 is answered within the look that met it."""
    source = watch(instance)
    instance.fault("401", count=1)
    assert source.poll().health is SEEING


def test_s1_a_renewal_that_fails_leaves_the_old_token_and_shows(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock
) -> None:
    """Three hours are left of it: notices are seen, the trouble is told, and not every look pays for it."""
    source = watch(instance, timeout=IMPATIENT)
    source.poll()
    clock.advance(10800)
    instance.fault("hop-limit")
    source.poll()
    instance.preempt()
    sighting = source.poll()
    assert len(sighting.notices) == 1
    assert sighting.health.seeing
    assert "could not be renewed" in sighting.health.detail
    assert "--http-put-response-hop-limit 2" in sighting.health.detail  # three hours before it is blind
    assert instance.count("PUT") == 2
    clock.advance(5400)  # half of what was left
    source.poll()
    assert instance.count("PUT") == 3
    instance.clear()
    clock.advance(2700)
    source.poll()
    assert source.poll().health is SEEING


# --- S2: the hop limit --------------------------------------------------------------------------------------


@pytest.mark.parametrize("v2_required", [True, False])
def test_s2_a_hop_limit_is_named_and_version_1_is_not_spoken(
    simulate_aws: SimulateAws, clock: ManualClock, watch: MakeSource, v2_required: bool
) -> None:
    """The PUT's answer never comes, a GET's does. The notice that version 1 would show is not read by it."""
    instance = simulate_aws(clock, v2_required=v2_required)
    instance.preempt()
    instance.fault("hop-limit")
    source = watch(instance, timeout=IMPATIENT)
    for _ in range(2):
        sighting = source.poll()
        assert (sighting.health.sight, sighting.health.reason) == (Sight.BLIND, "hop-limit")
        assert sighting.notices == ()
    assert "--instance-id i-0123 --http-put-response-hop-limit 2" in sighting.health.advice
    assert instance.count(path=PATH) == 0
    instance.clear()
    instance.preempt()
    the_notice(source)


def test_s2_a_put_that_hangs_with_all_else_is_a_timeout(instance: AwsSimulator, watch: MakeSource) -> None:
    """A firewall that swallows everything is no hop limit."""
    instance.fault("hang")
    health = watch(instance, timeout=IMPATIENT).poll().health
    assert (health.sight, health.reason) == (Sight.BLIND, "timeout")
    assert "iptables" in health.advice


def the_health(clock: ManualClock) -> Health:
    """Of one look, which shows no notice."""
    with closing(InstanceAction(AwsImds(CANNED, clock), clock)) as source:
        sighting = source.poll()
    assert sighting.notices == ()
    return sighting.health


@pytest.mark.parametrize("status", [404, 405])
def test_a_service_without_tokens_is_somebody_else(
    canned: RequestsMock, clock: ManualClock, status: int
) -> None:
    """Another cloud, or an old imitation, does not know the PUT. It is named, and asked for nothing more."""
    canned.put(CANNED + TOKEN_PATH, status=status, headers={"Server": "Metadata Server for VM"})
    seen = the_health(clock)
    assert seen.sight is Sight.WRONG_SERVER
    assert "from 'Metadata Server for VM'" in seen.detail
    assert len(canned.calls) == 1


@pytest.mark.parametrize(
    "token", [b"", b"a token", b"<html>", b'{"token":1}', b"x" * 1025, b"caf\xc3\xa9", b"a\r\nX: y"]
)
def test_s17_a_token_that_is_none_is_a_wrong_server(
    canned: RequestsMock, clock: ManualClock, token: bytes
) -> None:
    """It is never sent on as a header, whatever it holds."""
    canned.put(CANNED + TOKEN_PATH, body=token)
    assert the_health(clock).reason == "wrong-server"
    assert len(canned.calls) == 1


# --- who answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("proof", "reason"),
    [
        ({"status": 404, "body": b"not found"}, "missing-key"),
        ({"body": b"ok"}, "wrong-server"),
        ({"body": b""}, "wrong-server"),
        ({"body": b"<html>i-0123</html>"}, "wrong-server"),
        ({"status": 503}, "server-error"),
        ({"status": 403}, "forbidden"),
    ],
)
def test_a_server_that_takes_any_put_is_no_instance(
    canned: RequestsMock, clock: ManualClock, proof: Mapping[str, Any], reason: str
) -> None:
    """It has a word for a token and nothing else: an absent notice there is no good news."""
    canned.put(CANNED + TOKEN_PATH, body=b"ok")
    canned.get(CANNED + PATH, status=404, body=b"not found")
    canned.get(CANNED + PROOF_PATH, **proof)
    with closing(InstanceAction(AwsImds(CANNED, clock), clock)) as source:
        for _ in range(2):
            sighting = source.poll()
            assert (sighting.health.reason, sighting.notices) == (reason, ())
            assert PROOF_PATH in sighting.health.detail


def test_a_key_that_is_hidden_and_then_shown(instance: AwsSimulator, watch: MakeSource) -> None:
    """Blind as long as it is, and a notice is seen all the same."""
    instance.remove("instance-id")
    source = watch(instance)
    health = source.poll().health
    assert (health.sight, health.reason) == (Sight.BLIND, "missing-key")
    assert "let both through" in health.advice
    instance.preempt()
    the_notice(source)
    instance.clear()
    instance.put("instance-id", b"i-0123456789abcdef0\n")
    assert source.poll().health is SEEING


def test_a_stale_value_on_a_server_without_the_key_is_not_seeing(
    instance: AwsSimulator, watch: MakeSource
) -> None:
    instance.remove("instance-id")
    instance.preempt(-1800)
    assert watch(instance).poll().health.reason == "missing-key"


def test_s1_each_new_token_proves_itself_once(
    instance: AwsSimulator, watch: MakeSource, clock: ManualClock
) -> None:
    """Also one that replaces a forgotten one: who answers now may be somebody else."""
    source = watch(instance)
    source.poll()
    instance.expire_tokens()
    assert source.poll().health is SEEING
    clock.advance(10800)
    assert source.poll().health is SEEING
    assert (instance.count("PUT"), instance.count("GET", PROOF_PATH, 200)) == (3, 3)


# --- where it is --------------------------------------------------------------------------------------------

VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"


@pytest.mark.parametrize(
    ("explicit", "environ", "endpoint"),
    [
        (None, {}, "http://169.254.169.254"),
        (None, {f"{VARIABLE}_MODE": "IPv6"}, "http://[fd00:ec2::254]"),
        (None, {f"{VARIABLE}_MODE": "ipv4"}, "http://169.254.169.254"),
        (None, {VARIABLE: "http://127.0.0.1:1338/", f"{VARIABLE}_MODE": "IPv6"}, "http://127.0.0.1:1338"),
        (None, {VARIABLE: ""}, "http://169.254.169.254"),
        ("http://[::1]:1", {VARIABLE: "http://127.0.0.1:1338"}, "http://[::1]:1"),
    ],
)
def test_the_endpoint_is_what_was_said_by_the_nearest(
    explicit: str | None, environ: dict[str, str], endpoint: str
) -> None:
    """The flag, then the ecosystem's own variables, then AWS's address."""
    assert resolve_endpoint(explicit, environ) == endpoint


@pytest.mark.parametrize(
    ("explicit", "environ", "named"),
    [
        ("https://127.0.0.1", {}, "--metadata-endpoint"),
        (None, {VARIABLE: "localhost"}, f"{VARIABLE} 'localhost'"),
        (None, {f"{VARIABLE}_MODE": "IPv5"}, "'IPv5': expected IPv4 or IPv6"),
    ],
)
def test_an_endpoint_that_is_none_names_where_it_was_said(
    explicit: str | None, environ: dict[str, str], named: str
) -> None:
    """One line, before anything is sent."""
    with pytest.raises(UsageError, match=named):
        resolve_endpoint(explicit, environ)
