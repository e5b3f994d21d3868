"""What S3 answers, and what it does on a bad day."""

from __future__ import annotations

import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from spotguard.providers.errors import (
    CorruptError,
    DeniedError,
    FullError,
    NotFoundError,
    NotSupportedError,
    StoreError,
    ThrottledError,
    UnavailableError,
)
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.factory import open_store
from tests.fakes.answering import Answer, AnsweringServer, Asked
from tests.fakes.certificate import Certificate
from tests.fakes.raw_server import RawServer
from tests.providers.stores.s3.asked import DATA, STORED, VERBS, at, error_body, refusal
from tests.servers.faultplan import Fault
from tests.servers.faults import FaultProxy
from tests.servers.moto import Moto
from tests.servers.swift import Swift
from tests.tiers import few_fast

pytestmark = pytest.mark.usefixtures("somebody_to_aws")

#: AWS: "Error responses", Amazon S3 API Reference.
ANSWERS: list[tuple[int, str, type[StoreError]]] = [
    (400, "BadDigest", CorruptError),
    (400, "InvalidDigest", CorruptError),
    (400, "XAmzContentChecksumMismatch", CorruptError),
    (400, "XAmzContentSHA256Mismatch", CorruptError),
    (400, "IncompleteBody", UnavailableError),
    (400, "RequestTimeout", UnavailableError),
    (408, "RequestTimeout", UnavailableError),
    (409, "ConditionalRequestConflict", UnavailableError),
    (409, "OperationAborted", UnavailableError),
    (429, "TooManyRequests", ThrottledError),
    (500, "InternalError", UnavailableError),
    (502, "", UnavailableError),
    (503, "SlowDown", ThrottledError),
    (503, "ServiceUnavailable", ThrottledError),
    (503, "", ThrottledError),
    (504, "", UnavailableError),
    (400, "ThrottlingException", ThrottledError),
    (403, "AccessDenied", DeniedError),
    (403, "SignatureDoesNotMatch", DeniedError),
    (403, "InvalidAccessKeyId", DeniedError),
    (400, "ExpiredToken", DeniedError),
    (400, "ExpiredTokenException", DeniedError),
    (400, "InvalidAccessKeyId", DeniedError),
    (400, "InvalidClientTokenId", DeniedError),
    (400, "InvalidToken", DeniedError),
    (400, "InvalidTokenId", DeniedError),
    (400, "RequestExpired", DeniedError),
    (400, "RequestTimeTooSkewed", DeniedError),
    (400, "TokenRefreshRequired", DeniedError),
    (400, "UnrecognizedClientException", DeniedError),
    (401, "", DeniedError),
    (403, "RequestTimeTooSkewed", DeniedError),
    (404, "NoSuchKey", NotFoundError),
    (404, "NoSuchBucket", NotFoundError),
    (403, "QuotaExceeded", FullError),
    (400, "XMinioAdminBucketQuotaExceeded", FullError),
    (507, "XMinioStorageFull", FullError),
    (400, "InvalidRequest", StoreError),
    (405, "MethodNotAllowed", NotSupportedError),
    (501, "NotImplemented", NotSupportedError),
]


@pytest.mark.parametrize(("status", "code", "leaf"), ANSWERS)
def test_a_code_is_a_leaf(status: int, code: str, leaf: type[StoreError]) -> None:
    """Of every verb, and asked once: whoever has a deadline asks again. (Twice where credentials are asked for anew.)"""
    with AnsweringServer(lambda asked: refusal(status, code)) as server:
        store = at(server)
        for name, verb in VERBS.items():
            server.asked.clear()
            with pytest.raises(StoreError) as raised:
                verb(store)
            assert type(raised.value) is leaf
            assert raised.value.code == (code or str(status))
            assert code in str(raised.value)
            assert not code or "says S3" in str(raised.value)
            assert "\n" not in str(raised.value)
            assert raised.value.__cause__ is not None
            # A batch that is refused is tried one by one.
            assert len(server.asked) <= 1 + (name == "delete")


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (403, "RequestTimeTooSkewed", "this machine's clock is wrong"),
        (404, "NoSuchBucket", "there is no such bucket: make it, or correct the URL"),
        (403, "AccessDenied", "allow s3:PutObject, s3:GetObject and s3:DeleteObject"),
    ],
)
def test_a_message_says_the_way_out(status: int, code: str, advice: str) -> None:
    """Of what a person can mend."""
    with (
        AnsweringServer(lambda asked: refusal(status, code)) as server,
        pytest.raises(StoreError, match=advice),
    ):
        at(server).put("run/a", memoryview(DATA))


def test_a_refusal_within_a_batch_is_an_error() -> None:
    """The answer is 200, and says it in its body; a key that is not there is no error."""
    said = ""

    def answer(asked: Asked) -> Answer:
        error = f"<Error><Key>prefix/a</Key><Code>{said}</Code></Error>"
        return Answer(200, {}, f"<DeleteResult>{error}</DeleteResult>".encode())

    leaves = {
        "AccessDenied": DeniedError,
        "SlowDown": ThrottledError,
        "InternalError": UnavailableError,
        "NoSuchKey": None,
    }
    with AnsweringServer(answer) as server:
        for said, leaf in leaves.items():
            if leaf is None:
                at(server).delete(["a"])
                continue
            with pytest.raises(leaf, match=said):
                at(server).delete(["a"])


#: What a proxy, or a captive portal, says in a store's place; and an answer of S3's that lost its end.
STRANGE = {
    "a page": Answer(200, {"Content-Type": "text/html"}, b"<html>please log in<br>"),
    "XHTML": Answer(200, {"Content-Type": "text/html"}, b"<html><body>please log in</body></html>"),
    "half a listing": Answer(200, {}, b"<ListBucketResult><Contents><Key>a</Key><Si"),
    "a listing of no sizes": Answer(
        200,
        {},
        b"<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>a</Key></Contents></ListBucketResult>",
    ),
}


@pytest.mark.parametrize("answer", STRANGE.values(), ids=STRANGE)
def test_a_body_that_is_no_listing_is_an_error(answer: Answer) -> None:
    """It may be one the next time."""
    with AnsweringServer(lambda asked: answer) as server, pytest.raises(UnavailableError):
        list(at(server).list("run/"))


def test_a_broken_answer_to_a_deletion_is_an_error() -> None:
    """Cut off in its middle; or an error that does not say of what."""
    for body in (b"<DeleteResult><Err", b"<DeleteResult><Error><Key>a</Key></Error></DeleteResult>"):
        with (
            AnsweringServer(lambda asked, body=body: Answer(200, {}, body)) as server,  # type: ignore[misc]
            pytest.raises(UnavailableError),
        ):
            at(server).delete(["a"])


def test_an_object_whose_length_nobody_says_is_none() -> None:
    """It came in chunks, through a proxy."""
    said = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n\r\n"

    def serve(connection: socket.socket, number: int) -> None:
        connection.recv(65536)
        connection.sendall(said)

    with RawServer(serve) as server, pytest.raises(UnavailableError, match="no length"):
        open_store(f"s3://bucket/prefix?endpoint={server.url}").get("a")


@pytest.mark.parametrize(
    "answer", [Answer(200, {}, DATA), Answer(206, {"Content-Range": f"bytes 0-6/{len(DATA)}"}, DATA[:7])]
)
def test_another_range_is_not_the_one_that_was_asked_for(answer: Answer) -> None:
    """The whole object, or its beginning; and the connection is fit for the next request."""
    buffer = bytearray(7)
    with AnsweringServer(lambda asked: answer) as server:
        store = at(server)
        with pytest.raises(UnavailableError, match="another came"):
            store.read_into("run/a", 6, memoryview(buffer))
        assert buffer == bytes(7)
        server.answer = lambda asked: Answer(206, {"Content-Range": "bytes 6-12/99"}, DATA[6:13])
        store.read_into("run/a", 6, memoryview(buffer))
    assert buffer == DATA[6:13]


def test_swift_refuses_other_bytes(swift: Swift) -> None:
    """A CRC32 that is not of these bytes: nothing is there, and the right one is taken."""
    store = open_store(f"{swift.fresh()}/prefix")
    with pytest.raises(CorruptError):
        store.put("run/a", memoryview(DATA), crc32=zlib.crc32(DATA) ^ 1)
    assert list(store.list("")) == []
    store.put("run/a", memoryview(DATA), crc32=zlib.crc32(DATA))
    assert store.get("run/a") == DATA


def test_swift_refuses_bytes_that_changed_on_the_way(swift: Swift, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit, behind our own checksum."""
    url = swift.fresh()
    with FaultProxy(swift.endpoint) as proxy:
        for name, value in swift.environ_at(proxy.url).items():
            monkeypatch.setenv(name, value)
        proxy.inject(Fault("corrupt", after=1000, matching=lambda asked: asked.method == "PUT"))
        store = open_store(f"{url}/prefix")
        with pytest.raises(CorruptError):
            store.put("run/a", memoryview(DATA))
        proxy.heal()
        assert list(store.list("")) == []


@pytest.mark.parametrize("name", ["moto", "swift"])
def test_six_verbs(name: str, request: pytest.FixtureRequest) -> None:
    """Of the two servers that the suite has, one checks every signature."""
    store = open_store(f"{request.getfixturevalue(name).fresh()}/prefix")
    store.warm()
    store.put("run/a", memoryview(DATA))
    store.put("run/b", memoryview(b""))
    assert store.put_if_absent("run/a", memoryview(b"other")) is False
    assert store.put_if_absent("run/c", memoryview(b"c")) is True
    assert [(each.key, each.size) for each in store.list("run/")] == [
        ("run/a", len(DATA)),
        ("run/b", 0),
        ("run/c", 1),
    ]
    buffer = bytearray(10)
    store.read_into("run/a", 250, memoryview(buffer))
    assert bytes(buffer) == DATA[250:260]
    with pytest.raises(CorruptError):
        store.read_into("run/a", len(DATA) - 3, memoryview(buffer))
    store.delete(["run/a", "run/b", "run/none"])
    with pytest.raises(NotFoundError):
        store.get("run/a")
    assert [each.key for each in store.list("")] == ["run/c"]


def test_more_than_a_page_and_more_than_a_batch(moto: Moto) -> None:
    """A listing goes on, in order, and so does a deletion: a thousand at a time, most of them gone already."""
    store = open_store(f"{moto.fresh()}/prefix")
    names = [f"run/{number:04d}" for number in range(0, 1001, 10)]
    assert len(names) > moto.PAGE
    for name in names:
        store.put(name, memoryview(b"x"))
    assert [each.key for each in store.list("run/")] == names
    store.delete([f"run/{number:04d}" for number in range(1, 1002)])
    assert [each.key for each in store.list("")] == names[:1]


@pytest.fixture(params=["http", "https"])
def bad(
    moto: Moto, certificate: Certificate, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[tuple[FaultProxy, BlobStore]]:
    """A proxy that does what it is told, and a store behind it that holds run/a."""
    url = moto.fresh()
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate.ca))
    with FaultProxy(moto.endpoint, tls=certificate.server if request.param == "https" else None) as proxy:
        for name, value in moto.environ_at(proxy.url).items():
            monkeypatch.setenv(name, value)
        store = open_store(f"{url}/prefix")
        store.put("run/a", memoryview(DATA))
        yield proxy, store


#: Each is over for now, and the same request may do the next time.
FAULTS = {
    "reset at once": Fault("reset"),
    "reset in the body": Fault("reset", after=100),
    "reset before the answer": Fault("reset", "response"),
    "reset in the answer": Fault("reset", "response", after=5),
    "an answer that ends early": Fault("truncate", "response", after=5),
    "503": Fault("answer", body=error_body("SlowDown")),
    "500 of a proxy": Fault("answer", status=500, body=b"<html>no</html>"),
}


#: Inside TLS the faults are the same: one verb that sends, and one that receives.
BAD_DAYS = [("http", fault, verb) for fault in FAULTS for verb in VERBS] + [
    ("https", fault, verb)
    for verb in sorted(VERBS, key=["get", "put"].__contains__, reverse=True)
    for fault in FAULTS
]


@pytest.mark.parametrize(
    ("bad", "fault", "verb"), few_fast(BAD_DAYS, len(FAULTS) * (len(VERBS) + 2)), indirect=["bad"]
)
def test_a_transient_failure_succeeds_on_the_next_try(
    fault: str, verb: str, bad: tuple[FaultProxy, BlobStore]
) -> None:
    """And does it the next time, on a connection that is whole."""
    proxy, store = bad
    proxy.inject(FAULTS[fault])
    failed: list[StoreError] = []
    try:
        VERBS[verb](store)
    except StoreError as error:
        failed.append(error)
    # Some bodies are empty, or too short for what should happen in them.
    assert [error.transient for error in failed] == [True] or (FAULTS[fault].after and verb != "get")
    proxy.heal()
    VERBS[verb](store)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("where", ["request", "response"])
def test_a_stall_ends_with_the_time(verb: str, where: str, bad: tuple[FaultProxy, BlobStore]) -> None:
    """Nobody waits for ten seconds who has a fraction of one."""
    proxy, store = bad
    timed: dict[str, Callable[[], object]] = {
        "put": lambda: store.put("run/a", memoryview(DATA), timeout=0.2),
        "put_if_absent": lambda: store.put_if_absent("run/a", memoryview(DATA), timeout=0.2),
        "get": lambda: store.get("run/a", timeout=0.2),
        "read_into": lambda: store.read_into("run/a", 0, memoryview(bytearray(7)), timeout=0.2),
        "list": lambda: list(store.list("run/", timeout=0.2)),
        "delete": lambda: store.delete(["run/a"], timeout=0.2),
    }
    proxy.inject(Fault("stall", "request" if where == "request" else "response"))
    with pytest.raises(UnavailableError):
        timed[verb]()
    proxy.heal()
    VERBS[verb](store)


def test_a_store_that_is_gone_is_unavailable(bad: tuple[FaultProxy, BlobStore]) -> None:
    """And is there again when it is back."""
    proxy, store = bad
    proxy.vanish()
    for verb in VERBS.values():
        with pytest.raises(UnavailableError):
            verb(store)
    proxy.come_back()
    assert store.get("run/a") == DATA


def test_threads_have_a_connection_each() -> None:
    """Opened when they are warm, and no other after: at the notice only bytes move."""

    def answer(asked: Asked) -> Answer:
        if "range" in asked.headers:
            return Answer(206, {"Content-Range": "bytes 0-4/5"}, b"12345")
        return Answer(200, STORED.headers, b"12345") if asked.method == "GET" else STORED

    with AnsweringServer(answer) as server:
        store, met = at(server), threading.Barrier(3)

        def work(mine: int) -> None:
            store.put(f"run/{mine}", memoryview(DATA))
            met.wait(100)
            for number in range(5):
                store.put(f"run/{mine}/{number}", memoryview(DATA))
                assert store.get("run/a") == b"12345"
                with pytest.raises(CorruptError):
                    store.read_into("run/a", 0, memoryview(bytearray(6)))
                met.wait(100)

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(work, range(3)))
        assert len(server.connections) == 3
