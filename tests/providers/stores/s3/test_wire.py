"""What goes to S3: one signed request for each put, and the URL's options in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotguard.providers.errors import DeniedError, MisconfiguredError, NotFoundError, UsageError
from tests.fakes.answering import Answer, AnsweringServer, Asked
from tests.fakes.certificate import Certificate
from tests.providers.stores.s3.asked import DATA, STORED, at, error_body, refusal, region_of

pytestmark = pytest.mark.usefixtures("somebody_to_aws")


def test_options_are_on_the_wire() -> None:
    """Encryption where something is put, who pays everywhere."""
    with AnsweringServer(lambda asked: STORED) as server:
        store = at(server, "&kms-key-id=alias/job&requester-pays=true")
        store.put("run/a", memoryview(DATA))
        assert store.get("run/a") == b""
        put, got = (asked.headers for asked in server.asked)
        assert put["x-amz-server-side-encryption"] == "aws:kms"
        assert put["x-amz-server-side-encryption-aws-kms-key-id"] == "alias/job"
        assert put["x-amz-request-payer"] == got["x-amz-request-payer"] == "requester"
        assert "x-amz-server-side-encryption" not in got
        at(server, "&sse=AES256").put("run/a", memoryview(DATA))
        assert server.asked[-1].headers["x-amz-server-side-encryption"] == "AES256"
        assert "x-amz-request-payer" not in server.asked[-1].headers
        at(server, "&sse=aws:kms:dsse&kms-key-id=k").put("run/a", memoryview(DATA))
        assert server.asked[-1].headers["x-amz-server-side-encryption"] == "aws:kms:dsse"


def test_the_requester_pays_header_follows_the_option() -> None:
    """`false` is no."""
    with AnsweringServer(lambda asked: STORED) as server:
        at(server, "&requester-pays=false").put("run/a", memoryview(DATA))
        assert "x-amz-request-payer" not in server.asked[0].headers
        with pytest.raises(UsageError, match="requester-pays=yes is neither true nor false"):
            at(server, "&requester-pays=yes")


def test_a_put_is_one_request_with_its_checksum() -> None:
    """Signed without hashing the body once more, and without asking first whether it may come."""
    with AnsweringServer(lambda asked: STORED) as server:
        at(server).put("run/a", memoryview(DATA))
        asked = server.asked[0]
        assert (asked.method, asked.path, asked.body) == ("PUT", "/bucket/prefix/run/a", DATA)
        assert asked.headers["x-amz-checksum-crc32"]
        assert asked.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
        assert asked.headers["content-length"] == str(len(DATA))
        assert "expect" not in asked.headers
        assert "transfer-encoding" not in asked.headers
        assert len(server.asked) == 1


def test_the_callers_checksum_is_sent() -> None:
    """It is of the bytes as they were read: S3 refuses what changed in memory since."""
    with AnsweringServer(lambda asked: STORED) as server:
        at(server).put("run/a", memoryview(DATA), crc32=0x01020304)
        assert server.asked[0].headers["x-amz-checksum-crc32"] == "AQIDBA=="


@pytest.mark.parametrize(
    ("environment", "option", "region"),
    [
        ({}, "", "us-east-1"),
        ({"AWS_REGION": "eu-west-1"}, "", "eu-west-1"),
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-2"}, "", "eu-west-2"),
        ({"AWS_REGION": "eu-west-1"}, "&region=eu-west-3", "eu-west-3"),
    ],
)
def test_the_region_is_found(
    environment: dict[str, str], option: str, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The URL's, else the one of botocore's variable or file, else that of every other SDK's variable."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with AnsweringServer(lambda asked: STORED) as server:
        at(server, option).put("run/a", memoryview(DATA))
        assert region_of(server.asked[0]) == region


def test_the_profiles_region_goes_before_that_of_other_sdks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text("[default]\nregion = eu-west-2\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    with AnsweringServer(lambda asked: STORED) as server:
        at(server).put("run/a", memoryview(DATA))
        assert region_of(server.asked[0]) == "eu-west-2"


@pytest.mark.parametrize("status", [301, 400])
def test_a_bucket_elsewhere_is_found(status: int) -> None:
    """S3 says where it lies; the put is sent once more, whole, and the next one goes there at once."""
    code = "PermanentRedirect" if status == 301 else "AuthorizationHeaderMalformed"

    def answer(asked: Asked) -> Answer:
        if region_of(asked) == "eu-west-3":
            return STORED
        assert asked.body in (b"", DATA)
        return Answer(status, {}, error_body(code, "<Region>eu-west-3</Region>"))

    with AnsweringServer(answer) as server:
        store = at(server)
        store.put("run/a", memoryview(DATA))
        store.put("run/b", memoryview(DATA))
        puts = [asked for asked in server.asked if asked.method == "PUT"]
        assert [region_of(asked) for asked in puts] == ["us-east-1", "eu-west-3", "eu-west-3"]
        assert [asked.body for asked in puts[1:]] == [DATA, DATA]


@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_store_with_a_certificate_of_its_own(
    by: str, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named in the URL, or by the AWS CLI's own variable; else the message says how."""
    with AnsweringServer(lambda asked: STORED, certificate.server) as server:
        with pytest.raises(MisconfiguredError, match="the option ca=FILE in the store's URL"):
            at(server).put("run/a", memoryview(DATA))
        assert server.asked == []
        if by == "variable":
            monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate.ca))
            at(server).put("run/a", memoryview(DATA))
        else:
            at(server, f"&ca={certificate.ca}").put("run/a", memoryview(DATA))
        assert server.asked[0].body == DATA


def test_the_environments_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a store it holds, as for any program."""
    with AnsweringServer(lambda asked: STORED) as proxy, AnsweringServer(lambda asked: STORED) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        at(server).put("run/a", memoryview(DATA))
        assert [asked.path for asked in proxy.asked] == ["/bucket/prefix/run/a"]
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        at(server).put("run/b", memoryview(DATA))
        assert [asked.path for asked in server.asked] == ["/bucket/prefix/run/b"]


def test_warm_says_what_is_wrong() -> None:
    """Who may read nothing there is warm all the same: the probe says more. A bucket that is not there is an error."""
    said = [refusal(404, "NoSuchBucket"), refusal(403, "RequestTimeTooSkewed"), refusal(403, "AccessDenied")]
    with AnsweringServer(lambda asked: said.pop()) as server:
        at(server).warm()
        with pytest.raises(DeniedError, match="RequestTimeTooSkewed"):
            at(server).warm()
        with pytest.raises(NotFoundError, match="NoSuchBucket"):
            at(server).warm()
