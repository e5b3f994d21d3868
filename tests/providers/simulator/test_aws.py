"""The simulated instance is as faithful as the documentation and captures of the real one: asked by plain requests."""

from __future__ import annotations

import socket
from datetime import UTC, datetime

import pytest
import requests

from spotguard.providers.errors import UsageError
from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.fakes.clock import ManualClock
from tests.fixtures_simulator import SimulateAws
from tests.providers.clouds.aws.curl import NOTICE, TTL, Client


def is_page(answer: requests.Response, title: str) -> bool:
    return answer.text.startswith("<?xml") and f"<title>{title}</title>" in answer.text


# --- tokens -------------------------------------------------------------------------------------------------


def test_a_token_is_opaque_and_its_life_is_told(client: Client) -> None:
    """The life comes back in the header of the PUT, and what is left of it with each read."""
    answer = client.ask("PUT", "/latest/api/token", **{TTL: "60"})
    assert (answer.status_code, answer.headers[TTL]) == (200, "60")
    assert len(answer.text) == 56
    assert answer.text != client.token(60)
    assert client.get("/latest/meta-data/instance-id", answer.text).headers[TTL] == "60"


@pytest.mark.parametrize("ttl", ["", "0", "21601", "-1", "1.5", "six", "99999999999999999999"])
def test_a_life_out_of_range_is_a_bad_request(client: Client, ttl: str) -> None:
    """1 to 21600 seconds, in digits."""
    answer = client.ask("PUT", "/latest/api/token", **{TTL: ttl})
    assert answer.status_code == 400
    assert is_page(answer, "400 - Bad Request")
    assert client.ask("PUT", "/latest/api/token").status_code == 400


def test_a_put_that_was_forwarded_or_names_a_version_is_forbidden(client: Client) -> None:
    """It may come from outside; and tokens are `latest` only."""
    forwarded = client.ask("PUT", "/latest/api/token", **{TTL: "60", "X_Forwarded_For": "203.0.113.7"})
    versioned = client.ask("PUT", "/2021-07-15/api/token", **{TTL: "60"})
    assert (forwarded.status_code, versioned.status_code) == (403, 403)


@pytest.mark.parametrize("headers", [{}, {"X_aws_ec2_metadata_token": "AQAEAwrong=="}])
def test_without_a_token_or_with_a_wrong_one_nothing_is_read(client: Client, headers: dict[str, str]) -> None:
    """401 with a page, also for a key that is not there."""
    for path in ("/latest/meta-data/instance-id", NOTICE, "/"):
        answer = client.ask("GET", path, **headers)
        assert answer.status_code == 401
        assert is_page(answer, "401 - Unauthorized")


def test_a_token_dies_at_its_time(client: Client, clock: ManualClock) -> None:
    """And not before; others live on."""
    short, long = client.token(10), client.token(100)
    clock.advance(9)
    assert client.get("/latest/meta-data/instance-id", short).status_code == 200
    clock.advance(1)
    assert client.get("/latest/meta-data/instance-id", short).status_code == 401
    assert client.get("/latest/meta-data/instance-id", long).status_code == 200


def test_two_tokens_in_one_request_are_refused(instance: AwsSimulator) -> None:
    """What a client does that appends its new token to the old one."""
    client = Client(instance)
    old, new = client.token(), client.token()
    host, port = instance.endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        lines = [
            "GET /latest/meta-data/instance-id HTTP/1.1",
            "Host: x",
            f"X-aws-ec2-metadata-token: {old}",
            f"X-aws-ec2-metadata-token: {new}",
        ]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        assert connection.makefile("rb").readline().split()[1] == b"401"


def test_version_1_works_only_where_it_is_allowed(simulate_aws: SimulateAws) -> None:
    """There, too, a wrong token is worse than none."""
    client = Client(simulate_aws(v2_required=False))
    assert client.ask("GET", "/latest/meta-data/instance-id").status_code == 200
    assert client.get("/latest/meta-data/instance-id", "wrong").status_code == 401


# --- the tree -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/latest/meta-data/instance-life-cycle", "spot"),
        ("/latest/meta-data/instance-id", "i-0123456789abcdef0"),
        ("/2021-07-15/meta-data/placement/region", "us-east-1"),
        ("/latest/meta-data/placement/", "availability-zone\navailability-zone-id\nregion"),
        ("/latest/meta-data/placement", "availability-zone\navailability-zone-id\nregion"),
        ("/latest/meta-data/events/", "maintenance/"),
        ("/latest/meta-data/events/maintenance/scheduled", "[]"),
        ("/latest/", "dynamic\nmeta-data"),
        ("/", "1.0\n2021-07-15\nlatest"),
    ],
)
def test_keys_and_folders_are_plain_text(client: Client, path: str, text: str) -> None:
    """A folder lists its children, one to a line, folders with a slash."""
    answer = client.get(path)
    assert (answer.status_code, answer.text) == (200, text)
    assert answer.headers["Content-Type"] == "text/plain"
    assert answer.headers["Server"] == "EC2ws"


def test_the_identity_document_is_json(client: Client) -> None:
    """In the dynamic part of the tree."""
    assert client.get("/latest/dynamic/instance-identity/document").json()["region"] == "us-east-1"


@pytest.mark.parametrize(
    "path",
    [
        NOTICE,
        "/latest/meta-data/spot/",
        "/latest/meta-data/nothing",
        "/later/meta-data/",
        "/latest/user-data",
    ],
)
def test_a_missing_key_is_a_404_with_a_page(client: Client, path: str) -> None:
    """The folder `spot/` too, until there is a notice."""
    answer = client.get(path)
    assert answer.status_code == 404
    assert is_page(answer, "404 - Not Found")
    assert answer.headers["Content-Type"] == "text/html"


@pytest.mark.parametrize("method", ["POST", "DELETE", "PATCH"])
def test_other_methods_are_not_allowed(client: Client, method: str) -> None:
    """Nor is a GET of the token's path."""
    token = {"X_aws_ec2_metadata_token": client.token()}
    assert client.ask(method, "/latest/meta-data/instance-id", **token).status_code in (405, 501)
    assert client.ask("GET", "/latest/api/token", **token).status_code == 405


def test_a_head_has_no_body(client: Client) -> None:
    """Its length is told all the same."""
    answer = client.ask("HEAD", "/latest/meta-data/instance-id", X_aws_ec2_metadata_token=client.token())
    assert (answer.status_code, answer.content, answer.headers["Content-Length"]) == (200, b"", "19")


@pytest.mark.parametrize("keep_alive", [False, True])
def test_connections_close_as_captures_show_unless_asked_otherwise(
    simulate_aws: SimulateAws, keep_alive: bool
) -> None:
    """The header says so."""
    answer = Client(simulate_aws(keep_alive=keep_alive)).get("/latest/meta-data/")
    assert answer.headers.get("Connection") == (None if keep_alive else "close")


# --- the notice ---------------------------------------------------------------------------------------------


def test_a_notice_has_a_time_that_does_not_move(
    client: Client, instance: AwsSimulator, clock: ManualClock
) -> None:
    """A client that knows a notice by its time must see one notice."""
    assert instance.preempt(120) == clock.monotonic() + 120
    first = client.get(NOTICE)
    assert first.headers["Content-Type"] == "text/plain"
    assert first.json() == {"action": "terminate", "time": "2026-11-20T10:02:00Z"}
    assert client.get("/latest/meta-data/spot/").text == "instance-action\ntermination-time"
    assert client.get("/latest/meta-data/spot/termination-time").text == "2026-11-20T10:02:00Z"
    clock.advance(60)
    assert client.get(NOTICE).text == first.text


@pytest.mark.parametrize(("action", "time"), [("stop", "10:02:00"), ("hibernate", "10:00:00")])
def test_only_a_termination_has_a_termination_time(
    client: Client, instance: AwsSimulator, action: str, time: str
) -> None:
    """And hibernation begins at once."""
    instance.preempt(action=action)
    assert client.get(NOTICE).json() == {"action": action, "time": f"2026-11-20T{time}Z"}
    assert client.get("/latest/meta-data/spot/").text == "instance-action"


def test_a_skewed_clock_shows_in_the_time_alone(
    client: Client, instance: AwsSimulator, clock: ManualClock
) -> None:
    """The machine goes when it goes."""
    assert instance.preempt(120, skew=-60) == clock.monotonic() + 120
    assert client.get(NOTICE).json()["time"] == "2026-11-20T10:01:00Z"


def test_an_action_that_aws_does_not_have_is_refused(instance: AwsSimulator) -> None:
    """Here; any bytes can be put by hand."""
    with pytest.raises(UsageError, match="'reboot': expected one of terminate, stop, hibernate"):
        instance.preempt(action="reboot")
    assert instance.deadline is None


def test_a_rebalance_recommendation_comes_by_itself(client: Client, instance: AwsSimulator) -> None:
    """With the time it was made at; there is no notice by it."""
    instance.rebalance()
    answer = client.get("/latest/meta-data/events/recommendations/rebalance")
    assert answer.json() == {"noticeTime": "2026-11-20T10:00:00Z"}
    assert client.get(NOTICE).status_code == 404


def test_clear_takes_everything_back(client: Client, instance: AwsSimulator) -> None:
    """Notice, recommendation and faults; tokens stay good."""
    token = client.token()
    instance.preempt()
    instance.rebalance()
    instance.fault("503")
    instance.clear()
    assert client.get("/latest/meta-data/spot/", token).status_code == 404
    assert client.get("/latest/meta-data/events/recommendations/", token).status_code == 404
    assert instance.deadline is None


def test_any_bytes_can_stand_at_any_key(client: Client, instance: AwsSimulator) -> None:
    """For what no service should say."""
    instance.put("spot/instance-action", b"\x00\xff")
    assert client.get(NOTICE).content == b"\x00\xff"


def test_each_event_is_printed(simulate_aws: SimulateAws, clock: ManualClock) -> None:
    """Also when a client sees the notice for the first time, and only then."""
    told: list[str] = []
    instance = simulate_aws(clock, tell=told.append)
    client = Client(instance)
    instance.preempt()
    clock.advance(0.4)
    client.get(NOTICE)
    client.get(NOTICE)
    assert told == [
        "notice: terminate at 2026-11-20T10:02:00Z, 120 s from now",
        "the notice is read for the first time, 0.4 s later",
    ]


def test_on_the_machines_own_time_the_notice_is_dated_by_it(aws: AwsSimulator) -> None:
    """Two minutes from now, as anybody's clock here says."""
    before = datetime.now(UTC).timestamp()
    aws.preempt()
    after = datetime.now(UTC).timestamp()
    said = Client(aws).get(NOTICE).json()["time"]
    assert (
        before + 119 <= datetime.fromisoformat(said).timestamp() <= after + 120
    )  # whole seconds, rounded down
