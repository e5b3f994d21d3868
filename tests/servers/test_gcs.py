"""What the suite relies on its Cloud Storage for: the rules that the emulator alone does not keep."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any
from urllib.parse import quote

import google_crc32c
import pytest
import requests
from google.api_core.exceptions import NotFound, PreconditionFailed
from google.cloud import storage

from tests.servers.gcs import Gcs

RIVALS = 8
DATA = bytes(range(256)) * 40


@pytest.fixture
def bucket(gcs: Gcs) -> Iterator[Any]:
    """As the SDK finds it by the environment."""
    client = storage.Client()
    yield client.bucket(gcs.fresh().removeprefix("gs://"))
    client.close()


def crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


def test_bytes_come_back_as_they_were_uploaded(bucket: Any) -> None:
    """Bytes of every value, an empty object, and JSON: the emulator alone fails at the last two."""
    for name, data, kind in (
        ("a/b c+ü", DATA, None),
        ("empty", b"", None),
        ("json", b'{"a": 1}', "application/json"),
        ("line ends", b"\r\n--\n\r\r\n", "text/plain"),
    ):
        blob = bucket.blob(name)
        blob.upload_from_string(data, content_type=kind or "application/octet-stream", checksum="crc32c")
        assert bucket.blob(name).download_as_bytes(checksum="crc32c") == data
        found = bucket.get_blob(name)
        assert (found.size, found.crc32c) == (len(data), crc32c(data))


def test_one_of_many_rivals_for_an_object_wins(bucket: Any) -> None:
    for race in range(3):
        start = Barrier(RIVALS)

        def claim(rival: int, race: int = race, start: Barrier = start) -> bool:
            blob = bucket.blob(f"attempt-{race}")
            start.wait(30)
            try:
                blob.upload_from_string(b"%d" % rival, if_generation_match=0)
            except PreconditionFailed:
                return False
            return True

        with ThreadPoolExecutor(RIVALS) as pool:
            won = list(pool.map(claim, range(RIVALS)))
        assert won.count(True) == 1
        assert bucket.blob(f"attempt-{race}").download_as_bytes() == b"%d" % won.index(True)


def test_a_failed_condition_has_the_services_words(gcs: Gcs) -> None:
    url = upload(gcs, gcs.fresh(), "media", "k") + "&ifGenerationMatch=0"
    assert requests.post(url, data=b"first", timeout=10).status_code == 200
    refused = requests.post(url, data=b"second", timeout=10)
    assert refused.status_code == 412
    assert refused.json()["error"]["code"] == 412
    assert refused.json()["error"]["errors"][0]["reason"] == "conditionNotMet"


@pytest.mark.parametrize("where", ["header", "metadata"])
def test_a_wrong_crc32c_is_refused_and_nothing_is_stored(gcs: Gcs, where: str) -> None:
    place = gcs.fresh()
    url = upload(gcs, place, "media" if where == "header" else "multipart", "k")

    def put(claim: str) -> requests.Response:
        if where == "header":
            return requests.post(url, data=DATA, headers={"X-Goog-Hash": f"crc32c={claim}"}, timeout=10)
        body = b"".join(
            [
                b"--B\r\nContent-Type: application/json\r\n\r\n",
                json.dumps({"name": "k", "crc32c": claim}).encode(),
                b"\r\n--B\r\nContent-Type: application/octet-stream\r\n\r\n",
                DATA,
                b"\r\n--B--",
            ]
        )
        return requests.post(
            url, data=body, headers={"Content-Type": "multipart/related; boundary=B"}, timeout=10
        )

    refused = put(crc32c(b"other"))
    assert refused.status_code == 400
    assert "CRC32C" in refused.json()["error"]["message"]
    absent = requests.get(f"{gcs.endpoint}/storage/v1/b/{place[5:]}/o/k", timeout=10)
    assert absent.status_code == 404
    assert absent.json()["error"]["errors"][0]["reason"] == "notFound"
    assert put(crc32c(DATA)).status_code == 200


def test_pages_hold_what_was_asked_and_lead_on(gcs: Gcs, bucket: Any) -> None:
    names = sorted([f"run/{number:02}" for number in range(7)] + ["run/sub/x", "run/sub/y", "z"])
    for name in names:
        bucket.blob(name).upload_from_string(b"")
    url = f"{gcs.endpoint}/storage/v1/b/{bucket.name}/o?prefix=run/&maxResults=3"
    first = requests.get(url, timeout=10).json()
    assert [item["name"] for item in first["items"]] == names[:3]
    second = requests.get(f"{url}&pageToken={quote(first['nextPageToken'])}", timeout=10).json()
    assert [item["name"] for item in second["items"]] == names[3:6]
    assert [blob.name for blob in bucket.list_blobs(page_size=2)] == names
    listing = bucket.list_blobs(prefix="run/", delimiter="/", page_size=4)
    assert [blob.name for blob in listing] == names[:7]
    assert listing.prefixes == {"run/sub/"}
    nothing = requests.get(f"{gcs.endpoint}/storage/v1/b/{bucket.name}/o?prefix=no", timeout=10).json()
    assert nothing == {"kind": "storage#objects"}


def test_a_range_is_that_range(gcs: Gcs, bucket: Any) -> None:
    bucket.blob("a/k").upload_from_string(DATA)
    assert bucket.blob("a/k").download_as_bytes(start=10, end=19) == DATA[10:20]
    url, size = f"{gcs.endpoint}/storage/v1/b/{bucket.name}/o/a%2Fk?alt=media", len(DATA)
    for wanted, span in (("0-0", (0, 1)), (f"{size - 5}-", (size - 5, size)), ("-7", (size - 7, size))):
        part = requests.get(url, headers={"Range": f"bytes={wanted}"}, timeout=10)
        assert (part.status_code, part.content) == (206, DATA[slice(*span)])
        assert part.headers["Content-Range"] == f"bytes {span[0]}-{span[1] - 1}/{size}"
    beyond = requests.get(url, headers={"Range": f"bytes={size}-"}, timeout=10)
    assert (beyond.status_code, beyond.headers["Content-Range"]) == (416, f"bytes */{size}")


def test_a_missing_object_cannot_be_read_or_deleted(bucket: Any) -> None:
    with pytest.raises(NotFound):
        bucket.blob("none").download_as_bytes()
    with pytest.raises(NotFound):
        bucket.blob("none").delete()
    with pytest.raises(NotFound):
        bucket.client.bucket("no-such-bucket").blob("k").upload_from_string(b"")
    blob = bucket.blob("there")
    blob.upload_from_string(b"1")
    blob.delete()
    assert bucket.get_blob("there") is None


def test_an_object_read_during_its_replacement_is_one_of_the_two(bucket: Any) -> None:
    """Cloud Storage is strongly consistent: never bytes that are gone, nor half of each."""
    versions = [bytes([number]) * 4000 for number in range(60)]

    def put(data: bytes) -> None:
        bucket.blob("newest").upload_from_string(data, checksum="crc32c", retry=None)

    def replace() -> None:
        for data in versions:
            put(data)

    put(versions[0])
    with ThreadPoolExecutor(1) as pool:
        replacing = pool.submit(replace)
        while not replacing.done():
            assert bucket.blob("newest").download_as_bytes(checksum="crc32c", retry=None) in versions
        replacing.result()


def test_a_batch_deletes_and_says_what_it_could_not(bucket: Any) -> None:
    for name in ("a/1", "a/2"):
        bucket.blob(name).upload_from_string(b"1")
    missing: list[Any] = []
    bucket.delete_blobs(["a/1", "none", "a/2"], on_error=missing.append)
    assert missing == ["none"]
    with pytest.raises(NotFound), bucket.client.batch():
        bucket.blob("none").delete()
    assert list(bucket.list_blobs()) == []


def test_a_connection_serves_many_requests(gcs: Gcs) -> None:
    with requests.Session() as session:
        url = upload(gcs, gcs.fresh(), "media", "k")
        for _ in range(3):
            reply = session.post(url, data=iter([b"in ", b"chunks"]), timeout=10)
            assert reply.json()["size"] == "9"
            assert reply.raw.version == 11
            assert reply.headers.get("Connection", "keep-alive") == "keep-alive"


def upload(gcs: Gcs, place: str, kind: str, name: str) -> str:
    bucket = place.removeprefix("gs://")
    return f"{gcs.endpoint}/upload/storage/v1/b/{bucket}/o?uploadType={kind}&name={name}"
