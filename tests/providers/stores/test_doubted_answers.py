"""Answers that may be another server's: what settles the doubt, and what is an answer of the service itself."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable

import pytest

pytest.importorskip("google.cloud.storage")
pytest.importorskip("azure.storage.blob")

from spotguard.providers.errors import (
    CorruptError,
    DeniedError,
    NotFoundError,
    NotSupportedError,
    UnavailableError,
)
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.factory import open_store
from spotguard.providers.stores.gcs.evidence import checksum
from tests.fakes.answering import Answer, AnsweringServer, Asked
from tests.providers.stores.azure.opened import Opened

#: Opens a store of one cloud whose service is at this address.
Reaching = Callable[[str], BlobStore]

PAGE = b"<html><body>log in</body></html>"
HTML = {"Content-Type": "text/html"}


@pytest.fixture(params=["google", "azure"])
def cloud(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def reaching(cloud: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Reaching:
    if cloud == "google":
        monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
        return lambda url: open_store(f"gs://bucket/prefix?endpoint={url}")
    opened: Opened = request.getfixturevalue("opened")
    return lambda url: opened(url)


VERBS: dict[str, Callable[[BlobStore], object]] = {
    "put": lambda store: store.put("run/a", memoryview(b"x" * len(PAGE)), timeout=100),
    "put nothing": lambda store: store.put("run/a", memoryview(b""), timeout=100),
    "put_if_absent": lambda store: store.put_if_absent("run/a", memoryview(PAGE), timeout=100),
    "get": lambda store: store.get("run/a", timeout=100),
    "list": lambda store: list(store.list("run/", timeout=100)),
    "warm": lambda store: store.warm(timeout=100),
}


# --- a put whose answer is in doubt ---


class Kept:
    """A service that keeps objects, behind a proxy that answers the uploads in its place.

    Args:
        cloud: whose service.
        to_put: the proxy's answer to an upload.
        damage: what becomes of the bytes on their way.
        sums: whether the service keeps checksums.
    """

    def __init__(
        self,
        cloud: str,
        to_put: Answer,
        damage: Callable[[bytes], bytes | None] = lambda data: data,
        sums: bool = True,
    ) -> None:
        self._answer = self._gcs if cloud == "google" else self._azure
        self._put, self._damage = to_put, damage
        self.sums = sums
        self._bytes: bytes | None = None
        self.server = AnsweringServer(self._answer)

    def _gcs(self, asked: Asked) -> Answer:
        if asked.method == "POST":
            rest = asked.body.split(b"\r\n\r\n", 2)[2]
            self._bytes = self._damage(rest.rpartition(b"\r\n--")[0])
            return self._put
        if self._bytes is None:
            error = {"error": {"code": 404, "message": "none", "errors": [{"reason": "notFound"}]}}
            return Answer(404, {"Content-Type": "application/json"}, json.dumps(error).encode())
        kept = {"name": "prefix/run/a", "size": str(len(self._bytes))}
        if self.sums:
            kept["crc32c"] = checksum(memoryview(self._bytes))[1]
        return Answer(200, {"Content-Type": "application/json"}, json.dumps(kept).encode())

    def _azure(self, asked: Asked) -> Answer:
        own = {"x-ms-request-id": "1"}
        if asked.method == "PUT":
            self._bytes = self._damage(asked.body)
            return self._put
        if self._bytes is None:
            return Answer(404, {**own, "x-ms-error-code": "BlobNotFound"})
        kept = {**own, "ETag": '"1"', "x-ms-blob-type": "BlockBlob", "Content-Length": str(len(self._bytes))}
        if self.sums:
            kept["Content-MD5"] = base64.b64encode(hashlib.md5(self._bytes).digest()).decode()
        return Answer(200, kept)


DOUBTFUL = {
    "a page": Answer(200, HTML, PAGE),
    "nothing": Answer(204),
    "no ETag": Answer(201, {"x-ms-request-id": "1"}, b"{}"),
    "another size": Answer(
        201,
        {"ETag": '"1"'},
        json.dumps({"name": "prefix/run/a", "size": "9", "generation": "1", "crc32c": "AAAAAA=="}).encode(),
    ),
}


@pytest.fixture(params=DOUBTFUL)
def doubtful(request: pytest.FixtureRequest) -> Answer:
    return DOUBTFUL[request.param]


@pytest.mark.parametrize("verb", ["put", "put nothing", "put_if_absent"])
@pytest.mark.parametrize("sums", [True, False])
def test_a_doubted_put_counts_if_the_store_has_its_bytes(
    cloud: str, reaching: Reaching, doubtful: Answer, verb: str, sums: bool
) -> None:
    """One more request asks for the size, and for the checksum where the store keeps one."""
    kept = Kept(cloud, doubtful, sums=sums)
    with kept.server as server:
        assert VERBS[verb](reaching(server.url)) in (None, True)
        assert [asked.method for asked in server.asked][1:] == ["GET" if cloud == "google" else "HEAD"]


@pytest.mark.parametrize(
    "damage",
    [lambda data: None, lambda data: data[:-1], lambda data: b"X" + data[1:]],
    ids=["not there", "shorter", "other bytes"],
)
def test_a_doubted_put_fails_if_the_store_has_other_bytes(
    cloud: str, reaching: Reaching, doubtful: Answer, damage: Callable[[bytes], bytes | None]
) -> None:
    kept = Kept(cloud, doubtful, damage)
    with kept.server as server, pytest.raises(UnavailableError, match=r"no such|other bytes"):
        VERBS["put_if_absent"](reaching(server.url))


def test_a_store_that_gave_a_checksum_once_gives_it_again(cloud: str, reaching: Reaching) -> None:
    """Properties without it are of another server from then on."""
    kept = Kept(cloud, Answer(204))
    with kept.server as server:
        store = reaching(server.url)
        VERBS["put"](store)
        kept.sums = False
        with pytest.raises(UnavailableError, match="other bytes"):
            VERBS["put"](store)


def test_metadata_settle_a_download_that_an_emulator_refuses_in_plain_text() -> None:
    """Google's own failures of downloads are known by a header, and cost no second request."""
    missing = {"error": {"code": 404, "message": "none", "errors": [{"reason": "notFound"}]}}
    kept = json.dumps({"name": "prefix/run/a", "size": "4"}).encode()
    there = {404: Answer(404, {}, json.dumps(missing).encode()), 416: Answer(200, {}, kept)}
    for status, leaf in ((404, NotFoundError), (416, CorruptError)):
        refused = Answer(status, HTML, b"plain words")
        with AnsweringServer(
            lambda asked, refused=refused: refused if "download" in asked.path else there[refused.status]  # type: ignore[misc]
        ) as server:
            store = open_store(f"gs://bucket/prefix?endpoint={server.url}")
            with pytest.raises(leaf):
                store.read_into("run/a", 4, memoryview(bytearray(2)), timeout=100)
            assert len(server.asked) == 2
            server.answer = lambda asked, status=status: Answer(status, {"X-GUploader-UploadID": "1"})  # type: ignore[misc]
            with pytest.raises(leaf):
                store.read_into("run/a", 4, memoryview(bytearray(2)), timeout=100)
            assert len(server.asked) == 3


def test_a_portal_does_not_end_the_use_of_batches(cloud: str, reaching: Reaching) -> None:
    """Its 404 to a batch is no word of the service, which is asked for one again."""
    portal = Answer(404, HTML, PAGE)
    with AnsweringServer(lambda asked: portal) as server:
        store = reaching(server.url)
        with pytest.raises(UnavailableError):
            store.delete(["run/a"], timeout=100)
        server.asked.clear()
        with pytest.raises(UnavailableError):
            store.delete(["run/a"], timeout=100)
        assert server.asked[0].method == "POST"


# --- answers that are the service's own ---


@pytest.mark.parametrize("status", [405, 501])
def test_a_refused_conditional_create_is_an_answer(cloud: str, reaching: Reaching, status: int) -> None:
    """No outage that is waited for."""
    with AnsweringServer(lambda asked: Answer(status)) as server:
        with pytest.raises(NotSupportedError) as raised:
            VERBS["put_if_absent"](reaching(server.url))
        assert len(server.asked) == 1
    assert not raised.value.transient


def test_warm_takes_an_object_that_nobody_makes_for_another_server(cloud: str, reaching: Reaching) -> None:
    """With every sign of the service: a server that has any object."""
    body = json.dumps({"name": "prefix/spotguard-warm"}).encode()
    headers = {"X-GUploader-UploadID": "1", "x-ms-request-id": "1", "ETag": '"1"'}
    with (
        AnsweringServer(lambda asked: Answer(200, headers, body)) as server,
        pytest.raises(UnavailableError, match="nobody makes"),
    ):
        VERBS["warm"](reaching(server.url))


def test_the_words_of_the_service_are_in_the_message(cloud: str, reaching: Reaching) -> None:
    google = {"error": {"code": 403, "message": "its own words", "errors": [{"reason": "forbidden"}]}}
    xml = b"<?xml version='1.0'?><Error><Code>Odd</Code><Message>its own words\nRequestId:1</Message></Error>"
    answers = {
        "google": Answer(403, {"Content-Type": "application/json"}, json.dumps(google).encode()),
        "azure": Answer(
            403, {"Content-Type": "application/xml", "x-ms-error-code": "Odd", "x-ms-request-id": "1"}, xml
        ),
    }
    with AnsweringServer(lambda asked: answers[cloud]) as server:
        for verb in ("put", "put_if_absent", "get", "list"):
            with pytest.raises(DeniedError, match="its own words") as raised:
                VERBS[verb](reaching(server.url))
            assert "RequestId" not in str(raised.value)


class Enough(BaseException):
    """A cancel."""


class SecondPut(Exception):
    """As a second put of the same object ends the first."""


class Late(OSError, ValueError):
    """Of a kind that an SDK or a translation would take for its own."""


@pytest.mark.parametrize("raised", [Enough, SecondPut, Late])
def test_an_exception_of_the_caller_leaves_a_put_unchanged(
    reaching: Reaching, raised: type[BaseException]
) -> None:
    """Raised while bytes are sent, whatever the SDK makes of it."""
    own = raised()

    def sent(count: int) -> None:
        raise own

    with AnsweringServer(lambda asked: Answer(204)) as server, pytest.raises(raised) as caught:
        reaching(server.url).put("run/a", memoryview(bytes(2**20)), timeout=100, sent=sent)
    assert caught.value is own
