"""What goes over the wire to Azure, and what its answers become."""

from __future__ import annotations

import base64
import hashlib
import threading
import time
import traceback
import zlib
from dataclasses import replace

import pytest

pytest.importorskip("azure.storage.blob")

from spotguard.providers.errors import (
    CorruptError,
    DeniedError,
    NotFoundError,
    StoreError,
    ThrottledError,
    UnavailableError,
)
from spotguard.providers.stores.base import ObjectInfo
from tests.fakes.answering import Answer, Asked
from tests.providers.stores.azure.opened import ACCOUNT, CREATED, KEY, Opened, azure, part, refused

# --- what is sent ---


def test_an_object_is_one_request(opened: Opened) -> None:
    """Signed with its length and, if it is small, its MD5; the encryption scope is the URL's."""
    with azure(lambda asked: CREATED) as server:
        opened(server.url, "?encryption-scope=ours").put("run/a", memoryview(b"some bytes"))
        (asked,) = server.asked
    assert (asked.method, asked.path) == ("PUT", f"/{ACCOUNT}/container/prefix/run/a")
    assert asked.body == b"some bytes"
    assert asked.headers["content-md5"] == base64.b64encode(hashlib.md5(b"some bytes").digest()).decode()
    assert asked.headers["x-ms-blob-type"] == "BlockBlob"
    assert asked.headers["x-ms-encryption-scope"] == "ours"
    assert asked.headers["authorization"].startswith(f"SharedKey {ACCOUNT}:")
    assert "if-none-match" not in asked.headers


def test_a_large_object_is_one_request_too(opened: Opened) -> None:
    """Whatever its size, without an MD5, and every byte told once."""
    data = memoryview(bytes(range(256)) * (65 * 2**20 // 256))
    told: list[int] = []
    with azure(lambda asked: CREATED) as server:
        opened(server.url).put("a", data, crc32=zlib.crc32(data), sent=told.append)
        (asked,) = server.asked
    assert asked.body == data
    assert "content-md5" not in asked.headers
    assert sum(told) == len(data)


def test_a_warm_thread_has_its_connection(opened: Opened) -> None:
    """What comes after `warm` opens no other."""
    with azure(lambda asked: refused(404) if asked.method == "HEAD" else CREATED) as server:
        store = opened(server.url)
        for _ in range(2):
            store.warm(timeout=100)
            store.put("a", memoryview(b"x" * 2**20))
        assert len(server.connections) == 1
        thread = threading.Thread(target=store.warm, name="another")
        thread.start()
        thread.join(100)
        assert len(server.connections) == 2


def test_a_range_is_one_request(opened: Opened) -> None:
    """However large, and nothing before it to learn the size."""
    data = bytes(range(256)) * (40 * 2**20 // 256)

    def answer(asked: Asked) -> Answer:
        first, last = map(int, asked.headers["x-ms-range"].removeprefix("bytes=").split("-"))
        return part(data[first : last + 1], first, len(data))

    with azure(answer) as server:
        store, buffer = opened(server.url), bytearray(36 * 2**20)
        store.read_into("a", 5, memoryview(buffer))
        assert len(server.asked) == 1
        assert store.get("a") == data
        assert [asked.method for asked in server.asked] == ["GET", "GET"]
        assert len(server.connections) == 1
    assert buffer == data[5 : 5 + len(buffer)]


def page(names: list[str], more: str = "") -> Answer:
    blobs = "".join(
        f"<Blob><Name>{name}</Name><Properties><Content-Length>{len(name)}</Content-Length>"
        "<BlobType>BlockBlob</BlobType></Properties>"
        f"<Metadata>{'<hdi_isfolder>true</hdi_isfolder>' if '.' not in name else ''}</Metadata></Blob>"
        for name in names
    )
    # The SDK takes the prefix of the next page from this one.
    listing = f"<Prefix>prefix/a</Prefix><Blobs>{blobs}</Blobs><NextMarker>{more}</NextMarker>"
    body = f"<?xml version='1.0'?><EnumerationResults>{listing}</EnumerationResults>"
    return Answer(200, {"Content-Type": "application/xml"}, body.encode())


def test_a_listing_goes_on_to_its_end(opened: Opened) -> None:
    """Over its pages; the folders of a hierarchical namespace are no objects, and its order is not of keys."""
    pages = {
        "": page(["prefix/a", "prefix/a/z.bin"], "more"),
        "more": page(["prefix/a/zz.bin", "prefix/a-b.bin"]),
    }
    with azure(lambda asked: pages[asked.query.get("marker", "")]) as server:
        found = list(opened(server.url).list("a"))
        assert [asked.query["prefix"] for asked in server.asked] == ["prefix/a"] * 2
    assert found == [
        ObjectInfo("a-b.bin", 14, 0.0),
        ObjectInfo("a/z.bin", 14, 0.0),
        ObjectInfo("a/zz.bin", 15, 0.0),
    ]


def test_a_listing_that_breaks_off_is_none(opened: Opened) -> None:
    """Half of what is there is never taken for all of it."""
    with (
        azure(
            lambda asked: (
                refused(503, "ServerBusy") if "marker" in asked.query else page(["prefix/a.bin"], "more")
            )
        ) as server,
        pytest.raises(ThrottledError),
    ):
        opened(server.url).list("")


def multipart(*parts: tuple[int, str]) -> Answer:
    """What became of each blob of a batch."""
    lines = []
    for number, (status, said) in enumerate(parts):
        lines += ["--batch", "Content-Type: application/http", f"Content-ID: {number}", ""]
        lines += [f"HTTP/1.1 {status} Said", *([f"x-ms-error-code: {said}"] if said else []), "", ""]
    body = "\r\n".join([*lines, "--batch--", ""])
    return Answer(202, {"Content-Type": "multipart/mixed; boundary=batch"}, body.encode())


def test_each_answer_of_a_batch_is_checked(opened: Opened) -> None:
    """Gone already is gone; a refusal names its key."""
    answer = multipart((202, ""), (404, "BlobNotFound"), (403, "AuthorizationPermissionMismatch"))
    with azure(lambda asked: answer) as server:
        with pytest.raises(DeniedError, match="az://container/prefix/c: AuthorizationPermissionMismatch"):
            opened(server.url).delete(["a", "b", "c"])
        (asked,) = server.asked
        assert (asked.method, asked.query["comp"]) == ("POST", "batch")


@pytest.mark.parametrize(
    "answer",
    [
        refused(403, "AuthorizationPermissionMismatch"),
        refused(501),
        multipart((202, "")),
        multipart((400, ""), (202, "")),
    ],
    ids=["not allowed", "not known", "cut off", "not understood"],
)
def test_without_batches_each_is_deleted_by_itself(opened: Opened, answer: Answer) -> None:
    """And nothing is tried twice: the next delete goes the way that works."""
    with azure(lambda asked: answer if asked.method == "POST" else Answer(202)) as server:
        store = opened(server.url)
        store.delete(["a", "b"])
        store.delete(["c"])
        assert [(asked.method, asked.path[-1]) for asked in server.asked] == [
            ("POST", "r"),
            ("DELETE", "a"),
            ("DELETE", "b"),
            ("DELETE", "c"),
        ]


# --- what is answered ---


@pytest.mark.parametrize(
    ("answer", "leaf"),
    [
        (refused(400, "InvalidAuthenticationInfo"), DeniedError),
        (refused(401, "InvalidAuthenticationInfo"), DeniedError),
        (refused(403, "AuthenticationFailed"), DeniedError),
        (refused(403, "AuthorizationPermissionMismatch"), DeniedError),
        (refused(403, "KeyBasedAuthenticationNotPermitted"), DeniedError),
        (refused(409, "BlobImmutableDueToPolicy"), DeniedError),
        (refused(404, "ContainerNotFound"), NotFoundError),
        (refused(409, "ContainerBeingDeleted"), NotFoundError),
        (refused(404), NotFoundError),
        (refused(400, "Md5Mismatch"), CorruptError),
        (refused(400, "Crc64Mismatch"), CorruptError),
        (refused(429), ThrottledError),
        (refused(503, "ServerBusy"), ThrottledError),
        (refused(503), ThrottledError),
        (refused(500, "OperationTimedOut"), UnavailableError),
        (refused(500, "InternalError"), UnavailableError),
        (refused(502), UnavailableError),
        (refused(408), UnavailableError),
        (refused(412, "LeaseIdMissing"), StoreError),
        (refused(409, "InvalidBlobType"), StoreError),
        (refused(400, "InvalidHeaderValue"), StoreError),
        (Answer(307, {"Location": "http://elsewhere.example/"}), UnavailableError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value.status),
)
def test_an_answer_is_one_leaf_and_asked_for_once(
    opened: Opened, answer: Answer, leaf: type[StoreError]
) -> None:
    """Whatever asks; the message has the code, the place and no key, and the SDK retries nothing."""
    with azure(lambda asked: answer) as server:
        store = opened(server.url)
        for attempt in (
            lambda: store.put("run/a", memoryview(b"x")),
            lambda: store.put_if_absent("run/a", memoryview(b"x")),
            lambda: store.get("run/a"),
            lambda: store.read_into("run/a", 0, memoryview(bytearray(1))),
            lambda: store.list("run/a"),
        ):
            server.asked.clear()
            with pytest.raises(StoreError) as raised:
                attempt()
            assert type(raised.value) is leaf
            assert raised.value.code == answer.headers.get("x-ms-error-code", str(answer.status))
            assert raised.value.__cause__ is not None
            said = str(raised.value)
            assert answer.headers.get("x-ms-error-code", "") in said
            assert "az://container/prefix/run/a" in said
            assert "\n" not in said
            assert KEY not in "".join(traceback.format_exception(raised.value))
            assert len(server.asked) == 1


@pytest.mark.parametrize("answer", [refused(409, "BlobAlreadyExists"), refused(412, "ConditionNotMet")])
def test_only_what_is_there_is_no(opened: Opened, answer: Answer) -> None:
    """The two words of Azure for "exists"; a blind `put` takes neither for an answer."""
    with azure(lambda asked: answer) as server:
        store = opened(server.url)
        assert store.put_if_absent("a", memoryview(b"x")) is False
        assert server.asked[0].headers["if-none-match"] == "*"
        with pytest.raises(StoreError):
            store.put("a", memoryview(b"x"))


def test_a_container_that_is_not_there_is_named(opened: Opened) -> None:
    with (
        azure(lambda asked: refused(404, "ContainerNotFound")) as server,
        pytest.raises(NotFoundError, match="there is no such container in this account"),
    ):
        opened(server.url).put("a", memoryview(b"x"))


@pytest.mark.parametrize(
    "answer",
    [part(b"12", 3, 5), Answer(416, {"x-ms-error-code": "InvalidRange"})],
    ids=["fewer bytes", "no such range"],
)
def test_a_short_object_is_corrupt(opened: Opened, answer: Answer) -> None:
    with azure(lambda asked: answer) as server, pytest.raises(CorruptError):
        opened(server.url).read_into("a", 3, memoryview(bytearray(4)))


def test_a_whole_object_is_compared_with_its_size_and_its_md5(opened: Opened) -> None:
    """What came is not what the service keeps; the manifests of a checkpoint are such objects."""
    md5 = base64.b64encode(hashlib.md5(b"right").digest()).decode()
    says = [part(b"right", 0, 5), part(b"wrong", 0, 5), part(b"right", 0, 6)]
    answers = iter([replace(each, headers={**each.headers, "x-ms-blob-content-md5": md5}) for each in says])
    with azure(lambda asked: next(answers)) as server:
        store = opened(server.url)
        assert store.get("a") == b"right"
        with pytest.raises(CorruptError, match="MD5"):
            store.get("a")
        with pytest.raises(UnavailableError, match="bytes 0-4/6"):
            store.get("a")


def test_an_answer_that_is_no_range_is_not_read(opened: Opened) -> None:
    """What knows no ranges gives the object's beginning for its middle."""
    with azure(lambda asked: Answer(200, {}, b"from the beginning")) as server:
        buffer = bytearray(b"....")
        with pytest.raises(StoreError, match="not Azure's"):
            opened(server.url).read_into("a", 3, memoryview(buffer))
    assert buffer == b"...."


@pytest.mark.parametrize(("ahead", "said"), [(3600, "3600 s ahead of"), (-1200, "1200 s behind")])
def test_a_wrong_clock_is_named(opened: Opened, ahead: int, said: str) -> None:
    """Azure says AuthenticationFailed of a request whose date is not of now."""
    with azure(lambda asked: refused(403, "AuthenticationFailed")) as server:
        server.date = time.time() - ahead
        with pytest.raises(DeniedError, match="this machine's clock is") as raised:
            opened(server.url).warm()
    off = int(str(raised.value).partition("clock is ")[2].split(" ")[0])
    assert abs(off - abs(ahead)) <= 30
    assert said.partition(" s ")[2] in str(raised.value)


@pytest.mark.parametrize(
    "answer",
    [refused(404), refused(404, "ContainerNotFound"), refused(403, "AuthorizationPermissionMismatch")],
)
def test_warm_wants_a_connection_and_no_permission(opened: Opened, answer: Answer) -> None:
    with azure(lambda asked: answer) as server:
        opened(server.url).warm(timeout=100)
        assert [asked.method for asked in server.asked] == ["HEAD"]


@pytest.mark.parametrize(
    "answer", [refused(403, "AuthenticationFailed"), refused(403, "AuthorizationFailure"), refused(503)]
)
def test_warm_fails_where_everything_would(opened: Opened, answer: Answer) -> None:
    with azure(lambda asked: answer) as server, pytest.raises(StoreError):
        opened(server.url).warm(timeout=100)
