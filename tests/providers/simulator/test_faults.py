"""Each fault is what its name says, for as long as was said, and no more."""

from __future__ import annotations

import threading

import pytest
import requests

from spotguard.providers.errors import UsageError
from spotguard.providers.simulator.aws.service import FAULTS, AwsSimulator
from spotguard.providers.simulator.faults import REDIRECTED
from tests.fakes.clock import ManualClock
from tests.providers.clouds.aws.curl import NOTICE, TTL, Client


@pytest.mark.parametrize("kind", ["403", "429", "500", "503"])
def test_a_status_fault_meets_every_request(client: Client, instance: AwsSimulator, kind: str) -> None:
    """The PUT as well as the reads."""
    token = client.token()
    instance.fault(kind)
    assert client.get(NOTICE, token).status_code == int(kind)
    assert client.ask("PUT", "/latest/api/token", **{TTL: "60"}).status_code == int(kind)


def test_a_401_fault_meets_reads_alone(client: Client, instance: AwsSimulator) -> None:
    """Tokens are given out, and none is good."""
    instance.fault("401")
    assert client.get(NOTICE, client.token()).status_code == 401


def test_a_fault_ends_after_its_time_or_its_count(
    client: Client, instance: AwsSimulator, clock: ManualClock
) -> None:
    """Whichever was said."""
    token = client.token()
    instance.fault("503", seconds=5)
    instance.fault("429", count=2)
    assert [client.get("/", token).status_code for _ in range(2)] == [503, 503]
    clock.advance(5)
    assert [client.get("/", token).status_code for _ in range(3)] == [429, 429, 200]


def test_a_hop_limit_swallows_the_put_alone(client: Client, instance: AwsSimulator) -> None:
    """A read is answered at once."""
    instance.fault("hop-limit")
    with pytest.raises(requests.ReadTimeout):
        client.session.put(f"{client.base}/latest/api/token", headers={TTL: "60"}, timeout=0.1)
    assert client.ask("GET", "/latest/meta-data/").status_code == 401


def test_a_reset_is_a_reset(client: Client, instance: AwsSimulator) -> None:
    """No answer, and no goodbye."""
    instance.fault("reset")
    with pytest.raises(requests.ConnectionError, match="reset by peer"):
        client.get(NOTICE, "x")


@pytest.mark.parametrize("kind", ["slow", "trickle", "hang"])
def test_a_slow_answer_comes_too_late(client: Client, instance: AwsSimulator, kind: str) -> None:
    """On a clock by hand, never."""
    token = client.token()
    instance.fault(kind)
    with pytest.raises((requests.ReadTimeout, requests.ConnectionError)):
        client.session.get(client.base, headers={"X-aws-ec2-metadata-token": token}, timeout=0.1)


def test_a_slow_answer_comes_at_its_time(client: Client, instance: AwsSimulator, clock: ManualClock) -> None:
    """10 s later, whole."""
    token = client.token()
    instance.fault("slow")
    answers: list[int] = []
    thread = threading.Thread(
        target=lambda: answers.append(client.get("/", token).status_code), name="client"
    )
    thread.start()
    assert clock.wait_for_waiters(1)
    clock.advance(10)
    thread.join(100)
    assert answers == [200]


def test_a_portal_a_redirect_and_20_mb_come_with_their_status(client: Client, instance: AwsSimulator) -> None:
    """Pages of others."""
    instance.fault("portal", count=1)
    assert "sign in" in client.get(NOTICE, "x").text
    instance.fault("redirect", count=1)
    answer = client.get(NOTICE, "x")
    assert (answer.status_code, answer.headers["Location"]) == (302, REDIRECTED)
    instance.fault("huge", count=1)
    assert len(client.get(NOTICE, "x").content) == 20 * 1024 * 1024


def test_garbage_is_nothing_that_could_be_read(client: Client, instance: AwsSimulator) -> None:
    """Bytes, under a status that promises words."""
    instance.fault("garbage")
    answer = client.get(NOTICE, "x")
    assert answer.status_code == 200
    with pytest.raises(UnicodeDecodeError):
        answer.content.decode()


def test_a_foreign_server_has_the_words_and_not_the_signature(client: Client, instance: AwsSimulator) -> None:
    """A proxy that passes on bodies, and no headers."""
    token = client.token()
    instance.fault("foreign")
    answer = client.get("/latest/meta-data/instance-id", token)
    assert (answer.text, answer.headers["Server"]) == ("i-0123456789abcdef0", "nginx")
    assert TTL not in answer.headers


def test_a_fault_of_one_path_leaves_the_others_alone(client: Client, instance: AwsSimulator) -> None:
    """One key fails, and its neighbours answer."""
    token = client.token()
    instance.fault("503", path="spot/")
    statuses = [client.get(path, token).status_code for path in (NOTICE, "/latest/meta-data/instance-id")]
    assert statuses == [503, 200]


def test_an_unknown_fault_is_refused_with_those_that_are(instance: AwsSimulator) -> None:
    """In one line."""
    with pytest.raises(UsageError, match=f"'404': expected one of {', '.join(sorted(FAULTS))}"):
        instance.fault("404")
