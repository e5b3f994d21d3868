"""The services that give AWS's credentials: STS, a container's, a machine's; and other servers in their place."""

from __future__ import annotations

import datetime
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotguard.providers.errors import (
    DeniedError,
    MisconfiguredError,
    NotFoundError,
    StoreError,
    UnavailableError,
)
from tests.cases import cases
from tests.fakes.answering import Answer, AnsweringServer
from tests.fakes.certificate import Certificate
from tests.fakes.portals import PORTALS
from tests.providers.stores.s3.asked import DATA, STORED, at, key_of, refusal

pytestmark = pytest.mark.usefixtures("somebody_to_aws")


@pytest.fixture
def sts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AnsweringServer]:
    """A role by a workload's own token, as Kubernetes gives one: STS is asked for it."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    (tmp_path / "token").write_text("a workload's")
    with AnsweringServer(lambda asked: assumed("ROLE", 5 * 60)) as server:
        for name, value in {
            "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/job",
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
            "AWS_ENDPOINT_URL_STS": server.url,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
        }.items():
            monkeypatch.setenv(name, value)
        yield server


def assumed(key: str, seconds: float) -> Answer:
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    words = f"""<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>
        <AccessKeyId>{key}</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>
        <Expiration>{end.strftime("%Y-%m-%dT%H:%M:%SZ")}</Expiration>
        </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""
    return Answer(200, {"Content-Type": "text/xml"}, words.encode())


REFUSED_BY_STS = Answer(
    403,
    {"Content-Type": "text/xml"},
    b"<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>",
)


def test_credentials_that_hold_are_used_when_sts_gives_no_others(
    sts: AnsweringServer, caplog: pytest.LogCaptureFixture
) -> None:
    """It answers, and says no: a warning, and every put goes."""
    with AnsweringServer(lambda asked: refusal(404, "NoSuchKey")) as server:
        store = at(server)
        with pytest.raises(NotFoundError):
            store.get("run/a")
        sts.answer = lambda asked: REFUSED_BY_STS
        store.warm()
        server.answer = lambda asked: STORED
        store.put("run/a", memoryview(DATA))
        assert key_of(server.asked[-1]) == "ROLE"
        # And where S3 refuses them, what it said is the error.
        server.answer = lambda asked: refusal(400, "ExpiredToken")
        with pytest.raises(DeniedError, match="ExpiredToken"):
            store.put("run/a", memoryview(DATA))
    assert len(sts.asked) == 3
    assert "AWS credentials end soon, and refreshing them failed" in caplog.text
    assert "AWS credentials are refused, and refreshing them failed" in caplog.text


@cases("portal", PORTALS)
def test_an_answer_of_another_server_than_sts_is_no_token(
    sts: AnsweringServer, caplog: pytest.LogCaptureFixture, portal: str
) -> None:
    """Nothing is sent to the store: not at a start, and old credentials stay in use later."""
    sts.answer = lambda asked: PORTALS[portal]
    with AnsweringServer(lambda asked: refusal(404, "NoSuchKey")) as server:
        store = at(server)
        with pytest.raises(StoreError) as raised:
            store.put("run/a", memoryview(DATA))
        assert type(raised.value) in (UnavailableError, MisconfiguredError)
        assert "[SG316]" in str(raised.value)
        assert server.asked == []
        sts.answer = lambda asked: assumed("ROLE", 5 * 60)
        with pytest.raises(NotFoundError):
            store.get("run/a")
        sts.answer = lambda asked: PORTALS[portal]
        caplog.clear()
        store.warm()
        assert key_of(server.asked[-1]) == "ROLE"
    assert "AWS credentials end soon, and refreshing them failed" in caplog.text


@cases(
    "said",
    [b"{}", b"[]", b'{"AccessKeyId": "a", "SecretAccessKey": "b", "Token": "t", "Expiration": "soon"}'],
)
def test_an_answer_of_another_server_than_the_containers_is_no_token(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON it is, and no credentials."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    with (
        AnsweringServer(lambda asked: Answer(200, {"Content-Type": "application/json"}, said)) as machine,
        AnsweringServer(lambda asked: STORED) as server,
    ):
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{machine.url}/credentials")
        with pytest.raises(UnavailableError, match="SG316"):
            at(server).put("run/a", memoryview(DATA))
        assert server.asked == []


@cases("portal", PORTALS)
def test_an_answer_of_another_server_than_the_machines_is_no_role(
    portal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain goes on, and ends."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    with (
        AnsweringServer(lambda asked: PORTALS[portal]) as machine,
        AnsweringServer(lambda asked: STORED) as server,
    ):
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", machine.url)
        with pytest.raises(DeniedError, match="no AWS credentials found"):
            at(server).put("run/a", memoryview(DATA))
        assert len(machine.asked) <= 4
        assert server.asked == []


def test_sts_that_is_away_may_be_back_soon(sts: AnsweringServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the job's first question is asked again; that its certificate is not trusted is said at once."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with AnsweringServer(lambda asked: STORED) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{port}")
        with pytest.raises(UnavailableError, match="EndpointConnectionError"):
            at(server).put("run/a", memoryview(DATA))
        assert server.asked == []


def test_sts_with_a_certificate_of_nobody_is_refused(
    sts: AnsweringServer, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For good, and with the way out: the store's own option is not for STS."""
    with AnsweringServer(lambda asked: STORED, certificate.server) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
        with pytest.raises(MisconfiguredError, match="AWS_CA_BUNDLE"):
            at(server).put("run/a", memoryview(DATA))
        assert server.asked == []


def test_the_metadata_service_is_never_asked_by_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy sees the put, and who signed it, and no question for the role."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=6)
    role = json.dumps(
        {
            "AccessKeyId": "ROLE",
            "SecretAccessKey": "s",
            "Token": "t",
            "Expiration": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
    )
    said = {"token": b"t", "": b"job", "job": role.encode()}
    with (
        AnsweringServer(lambda asked: Answer(200, {}, said[asked.path.rpartition("/")[2]])) as machine,
        AnsweringServer(lambda asked: STORED) as proxy,
        AnsweringServer(lambda asked: STORED) as server,
    ):
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", machine.url)
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        at(server).put("run/a", memoryview(DATA))
        assert [asked.path for asked in proxy.asked] == ["/bucket/prefix/run/a"]
        assert key_of(proxy.asked[0]) == "ROLE"
        assert len(machine.asked) == 3


def test_certificates_that_cannot_be_read_are_a_setting_for_sts(
    sts: AnsweringServer, certificate: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable's, although the store has others."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "none.pem"))
    with AnsweringServer(lambda asked: STORED, certificate.server) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.url)
        with pytest.raises(MisconfiguredError, match=r"cannot be read from .*none.pem"):
            at(server, f"&ca={certificate.ca}").put("run/a", memoryview(DATA))
        assert server.asked == []
