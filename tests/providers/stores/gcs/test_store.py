"""What Cloud Storage says on a bad day, and what goes over the wire: beyond the contract that every store keeps."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pytest

from spotguard.providers.errors import (
    CorruptError,
    DeniedError,
    FullError,
    NotFoundError,
    StoreError,
    ThrottledError,
    UnavailableError,
    UsageError,
)
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.factory import open_store
from spotguard.providers.stores.gcs.store import GCSStore
from spotguard.providers.stores.url import locate
from tests.fakes.google import FakeGoogle, Say
from tests.servers.gcs import Gcs

BAD = Say.error


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGoogle]:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    with FakeGoogle(tmp_path) as google:
        yield google


@pytest.fixture
def store(google: FakeGoogle) -> BlobStore:
    return open_store(f"gs://bucket/run?endpoint={google.url}/")


@pytest.mark.parametrize(
    ("say", "leaf"),
    [
        (BAD(429, "rateLimitExceeded"), ThrottledError),
        (BAD(403, "userRateLimitExceeded"), ThrottledError),
        (BAD(503, "backendError"), ThrottledError),
        (BAD(500, "backendError"), UnavailableError),
        (BAD(502, ""), UnavailableError),
        (BAD(504, ""), UnavailableError),
        (BAD(408, "uploadBrokenConnection"), UnavailableError),
        (Say(status=0), UnavailableError),
        (Say(307, headers={"Location": "/elsewhere"}), UnavailableError),
        (BAD(403, "quotaExceeded"), FullError),
        (BAD(403, "forbidden"), DeniedError),
        (BAD(401, "authError"), DeniedError),
        (BAD(404, "notFound"), NotFoundError),
        (BAD(400, "invalid"), CorruptError),
        (BAD(400, "required"), StoreError),
        (Say(418, b"<html>a proxy's own words</html>"), StoreError),
        (
            BAD(412, "conditionNotMet"),
            StoreError,
        ),  # an organisation's policy: nothing was put, and it is not there
    ],
    ids=lambda value: f"{value.status}" if isinstance(value, Say) else value.__name__,
)
def test_an_answer_becomes_the_leaf_that_its_status_and_reason_say(
    google: FakeGoogle, store: BlobStore, say: Say, leaf: type[StoreError]
) -> None:
    """After one request: the caller's loop asks again, by its deadline."""
    google.says.append(say)
    with pytest.raises(StoreError) as caught:
        store.put("a", memoryview(b"x" * 10_000), timeout=10)
    assert type(caught.value) is leaf
    assert caught.value.code in say.body.decode() + str(say.status)
    assert caught.value.code or say.status == 0
    assert caught.value.transient is (leaf in (ThrottledError, UnavailableError))
    assert "gs://bucket/run/a" in str(caught.value)
    assert len(google.asked) == 1


def test_the_permission_that_is_missing_is_named(google: FakeGoogle, store: BlobStore) -> None:
    """Each verb needs another one."""
    google.says.extend([BAD(403, "forbidden")] * 5)
    for verb, attempt in (
        ("create", lambda: store.put("a", memoryview(b"x"))),
        ("create", lambda: store.put_if_absent("a", memoryview(b"x"))),
        ("get", lambda: store.get("a")),
        ("list", lambda: list(store.list("a"))),
        ("delete", lambda: store.delete(["a"])),
    ):
        with pytest.raises(DeniedError, match=rf"storage\.objects\.{verb}"):
            attempt()


def test_a_bucket_that_is_not_there_is_said(gcs: Gcs) -> None:
    """By what cannot mean an object."""
    store = open_store("gs://bucket-of-nobody/run")
    with pytest.raises(NotFoundError, match=r"gs://bucket-of-nobody/run/a.*no such bucket"):
        store.put("a", memoryview(b"x"))
    with pytest.raises(NotFoundError, match="no such bucket"):
        list(store.list(""))


def test_one_request_carries_the_whole_object_and_its_sum(google: FakeGoogle, store: BlobStore) -> None:
    """No session is begun, and the bytes stand behind the CRC32C by which they are refused."""
    data = bytes(range(256)) * 4096
    store.put("a", memoryview(data))
    (asked,) = google.asked
    assert (asked.method, asked.path) == ("POST", "/upload/storage/v1/b/bucket/o")
    assert asked.query["uploadType"] == "multipart"
    assert "ifGenerationMatch" not in asked.query
    head, metadata, middle, body = asked.body.split(b"\r\n\r\n", 1)[0], *_parts(asked.body)
    assert b"application/json" in head
    assert b"application/octet-stream" in middle
    crc32c = base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()
    assert json.loads(metadata) == {"name": "run/a", "crc32c": crc32c}
    assert body == data
    assert "authorization" not in asked.headers  # nobody on plain HTTP gets a token


def _parts(body: bytes) -> tuple[bytes, bytes, bytes]:
    """The metadata, the second head and the second body."""
    boundary = body.partition(b"\r\n")[0]
    metadata, rest = body.split(b"\r\n\r\n", 1)[1].split(b"\r\n" + boundary + b"\r\n", 1)
    middle, data = rest.split(b"\r\n\r\n", 1)
    assert data.endswith(b"\r\n" + boundary + b"--")
    return metadata, middle, data.removesuffix(b"\r\n" + boundary + b"--")


def test_options_reach_the_wire(google: FakeGoogle) -> None:
    """Who pays goes with every request, the key with those that write."""
    key = "projects/p/locations/l/keyRings/r/cryptoKeys/k"
    store = open_store(f"gs://bucket?endpoint={google.url}&user-project=payer&kms-key-name={key}")
    store.put("a", memoryview(b"x"))
    store.put_if_absent("a", memoryview(b"x"))
    google.says.append(Say(206, b"x", {"Content-Range": "bytes 0-0/1"}))
    store.read_into("a", 0, memoryview(bytearray(1)))
    store.get("a")
    list(store.list(""))
    store.warm()
    assert [asked.query.get("userProject") for asked in google.asked] == ["payer"] * 6
    assert [asked.query.get("kmsKeyName") for asked in google.asked] == [key] * 2 + [None] * 4
    assert google.asked[1].query["ifGenerationMatch"] == "0"
    google.says.append(BAD(500, ""))
    with pytest.raises(UnavailableError):
        store.delete(["a"])
    assert b"userProject=payer" in google.asked[-1].body


def test_a_key_of_kms_has_its_whole_name() -> None:
    with pytest.raises(UsageError, match="kms-key-name=k;"):
        open_store("gs://bucket?kms-key-name=k")


def test_a_thread_keeps_its_connection(google: FakeGoogle, store: BlobStore) -> None:
    """What warm() opened is what the save uses, also after answers that were refusals."""
    google.says.extend([BAD(404, "notFound"), BAD(403, "forbidden")])
    store.warm()
    store.warm()
    store.put("a", memoryview(b"x" * 2**20))
    google.says.append(BAD(503, "backendError"))
    with pytest.raises(ThrottledError):
        store.put("b", memoryview(b"x"))
    store.put("b", memoryview(b"x"))
    google.says.append(Say(206, b"xy", {"Content-Range": "bytes 4-5/9"}))
    store.read_into("b", 4, memoryview(bytearray(2)))
    store.get("b")
    assert google.connections == 1


def test_a_warning_of_rights_is_no_failure_of_warmth(google: FakeGoogle, store: BlobStore) -> None:
    """A connection is open; an account that Google does not know is another matter."""
    google.says.append(BAD(401, "authError"))
    with pytest.raises(DeniedError):
        store.warm()


@pytest.mark.parametrize(
    ("say", "leaf"),
    [
        (Say(206, b"123", {"Content-Range": "bytes 4-6/7"}), CorruptError),
        (Say(416, b"", {"Content-Range": "bytes */4"}), CorruptError),
        (Say(206, b"12", {"Content-Range": "bytes 4-8/9"}, length=5), UnavailableError),
        (Say(206, b"12345", {"Content-Range": "bytes 0-4/9"}), UnavailableError),
        (Say(200, b"123456789"), UnavailableError),
        (Say(404, b"No such object: bucket/run/a"), NotFoundError),
    ],
    ids=["short object", "behind its end", "cut off", "another range", "no range", "none"],
)
def test_a_range_is_what_was_asked_for_or_an_error(
    google: FakeGoogle, store: BlobStore, say: Say, leaf: type[StoreError]
) -> None:
    """What is wrong with the object is told from what is wrong with the way."""
    google.says.append(say)
    with pytest.raises(StoreError) as caught:
        store.read_into("a", 4, memoryview(bytearray(5)))
    assert type(caught.value) is leaf


def test_a_whole_object_is_compared_with_its_sum(google: FakeGoogle, store: BlobStore) -> None:
    """What came is not what the service holds."""
    right = base64.b64encode(google_crc32c.value(b"right").to_bytes(4, "big")).decode()
    says = {"X-Goog-Hash": f"crc32c={right},md5=anything"}
    google.says.extend([Say(200, b"right", says), Say(200, b"wrong", says), Say(200, b"rig", says, length=5)])
    assert store.get("a") == b"right"
    with pytest.raises(CorruptError):
        store.get("a")
    with pytest.raises(UnavailableError):
        store.get("a")


def test_wrong_bytes_are_refused_by_the_service(gcs: Gcs) -> None:
    """A bit that flips between the sum and the wire leaves nothing in the store."""
    store, data = open_store(gcs.fresh()), bytearray(4 * 2**20)

    def flip(count: int) -> None:
        data[-1] = 1

    with pytest.raises(CorruptError, match="other bytes arrived"):
        store.put("a", memoryview(data), sent=flip)
    assert list(store.list("")) == []


def test_a_listing_goes_over_all_pages(gcs: Gcs) -> None:
    """Pages of 7, and batches of 5 that make them none."""
    store = GCSStore(locate(f"{gcs.fresh()}/deep"), page=7, calls=5)
    names = [f"run/{number:02}" for number in range(23)]
    for name in names:
        store.put(name, memoryview(b"x"))
    assert [info.key for info in store.list("run/")] == names
    store.delete(names)
    assert list(store.list("")) == []


def test_a_listing_that_breaks_off_is_no_listing(google: FakeGoogle, store: BlobStore) -> None:
    """The second page fails: nobody takes the first for all there is."""
    page = {"kind": "storage#objects", "items": [{"name": "run/a", "size": "1"}], "nextPageToken": "more"}
    says = [
        Say(body=json.dumps(page).encode()),
        BAD(500, "backendError"),
        Say(body=b"[1]"),
        Say(body=b"<html>"),
    ]
    google.says.extend(says)
    found = store.list("")
    assert next(found).key == "a"
    with pytest.raises(UnavailableError):
        next(found)
    assert [asked.query.get("pageToken") for asked in google.asked] == [None, "more"]
    assert google.asked[0].query["maxResults"] == "1000"
    for _ in range(2):
        with pytest.raises(UnavailableError):
            list(store.list(""))


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_service_without_batch_requests_is_asked_for_each_object(
    google: FakeGoogle, store: BlobStore, status: int
) -> None:
    """That is an answer and no outage: single deletes, and no batch is tried again."""
    google.says.extend([BAD(status, "notImplemented"), Say(204), BAD(404, "notFound"), Say(204)])
    store.delete(["a", "b"])
    store.delete(["c"])
    asked = [(each.method, each.path.rpartition("%2F")[2].rpartition("/")[2]) for each in google.asked]
    assert asked == [("POST", "v1"), ("DELETE", "a"), ("DELETE", "b"), ("DELETE", "c")]
    google.says.append(BAD(403, "forbidden"))
    with pytest.raises(DeniedError):
        store.delete(["d"])


def test_a_batch_says_which_delete_was_refused(google: FakeGoogle, store: BlobStore) -> None:
    """A key that was not there hides no other answer."""
    parts = [
        f"--b\r\nContent-Type: application/http\r\n\r\nHTTP/1.1 {status} Said\r\nContent-Length: 2\r\n\r\n{{}}\r\n"
        for status in (204, 404, 403)
    ]
    body = "".join([*parts, "--b--"]).encode()
    google.says.append(Say(200, body, {"Content-Type": "multipart/mixed; boundary=b"}))
    with pytest.raises(DeniedError, match=r"storage\.objects\.delete"):
        store.delete(["a", "b", "c"])
    headless = "--b\r\nContent-Type: application/http\r\n\r\nHTTP/1.1\r\n\r\n--b--"
    google.says.append(Say(200, headless.encode(), {"Content-Type": "multipart/mixed; boundary=b"}))
    with pytest.raises(UnavailableError):
        store.delete(["a"])
    google.says.append(Say(200, b"<html></html>", {"Content-Type": "text/html"}))
    with pytest.raises(UnavailableError):
        store.delete(["a"])
