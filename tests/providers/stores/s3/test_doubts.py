"""Answers that S3 itself would not give: a second look decides what they mean, and a service that leaves headers out works."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator

import pytest

from spotguard.providers.errors import (
    CorruptError,
    DeniedError,
    MisconfiguredError,
    NotFoundError,
    NotSupportedError,
    StoreError,
    UnavailableError,
)
from tests.cases import cases
from tests.fakes.answering import Answer, AnsweringServer, Asked
from tests.providers.stores.s3.asked import DATA, VERBS, at, error_body, refusal
from tests.providers.stores.s3.bare import WITHOUT_BATCH, BareS3

pytestmark = pytest.mark.usefixtures("somebody_to_aws")


@pytest.fixture
def bare() -> BareS3:
    return BareS3()


@pytest.fixture
def server(bare: BareS3) -> Iterator[AnsweringServer]:
    with AnsweringServer(bare) as server:
        yield server


def requests(server: AnsweringServer) -> list[str]:
    """The methods since the last call; a listing has its own word."""
    sent = ["LIST" if "list-type" in asked.query else asked.method for asked in server.asked]
    server.asked.clear()
    return sent


def test_a_service_that_leaves_headers_out_has_all_verbs(server: AnsweringServer) -> None:
    """No ETag, no code in an error, no key in the answer to a deletion."""
    store = at(server)
    store.warm()
    store.put("run/a", memoryview(DATA))
    store.put("run/empty", memoryview(b""))
    assert store.put_if_absent("run/b", memoryview(b"first")) is True
    assert store.put_if_absent("run/b", memoryview(b"other")) is False
    assert store.get("run/a") == DATA
    assert store.get("run/b") == b"first"
    assert [(info.key, info.size) for info in store.list("run/")] == [
        ("run/a", len(DATA)),
        ("run/b", 5),
        ("run/empty", 0),
    ]
    buffer = bytearray(10)
    store.read_into("run/a", 250, memoryview(buffer))
    assert buffer == DATA[250:260]
    store.read_into("run/empty", 0, memoryview(bytearray()))
    with pytest.raises(CorruptError):
        store.read_into("run/a", len(DATA), memoryview(buffer))
    store.delete(["run/a", "run/empty", "run/none"])
    for key in ("run/a", "run/none"):
        with pytest.raises(NotFoundError):
            store.get(key)
        with pytest.raises(NotFoundError):
            store.read_into(key, 0, memoryview(buffer))
        with pytest.raises(NotFoundError):
            store.read_into(key, 0, memoryview(bytearray()))
    assert [info.key for info in store.list("")] == ["run/b"]


@pytest.mark.parametrize("checksums", [True, False])
def test_an_upload_without_an_etag_is_looked_at(
    checksums: bool, bare: BareS3, server: AnsweringServer, caplog: pytest.LogCaptureFixture
) -> None:
    """By a checksum where the service keeps one, else by the listing: learned once, and said once."""
    caplog.set_level(logging.INFO, "spotguard.providers")
    bare.checksums = checksums
    store = at(server)
    store.put("run/a", memoryview(DATA))
    assert requests(server) == (["PUT", "HEAD"] if checksums else ["PUT", "HEAD", "LIST"])
    store.put("run/b", memoryview(DATA))
    assert requests(server) == (["PUT", "HEAD"] if checksums else ["PUT", "LIST"])
    assert [record.message for record in caplog.records].count(
        f"{store.url} answers uploads without an ETag: spotguard looks at each object after it"
    ) == 1


@pytest.mark.parametrize("checksums", [True, False])
def test_an_upload_that_was_swallowed_is_an_error(
    checksums: bool, bare: BareS3, server: AnsweringServer
) -> None:
    """Whether nothing is there, or something else."""
    bare.checksums, bare.swallowing = checksums, True
    with pytest.raises(UnavailableError, match="no object is there"):
        at(server).put("run/a", memoryview(DATA))
    with pytest.raises(UnavailableError, match="no object is there"):
        at(server).put_if_absent("run/a", memoryview(DATA))
    bare.swallowing = False
    at(server).put("run/a", memoryview(DATA[1:]))
    bare.swallowing = True
    with pytest.raises(UnavailableError, match="checksum" if checksums else "bytes in place of"):
        at(server).put("run/a", memoryview(DATA))


def test_another_checksum_of_as_many_bytes_is_an_error(bare: BareS3, server: AnsweringServer) -> None:
    """The service has damaged them, or has an older object there."""
    bare.checksums = True
    at(server).put("run/a", memoryview(DATA), crc32=zlib.crc32(DATA))
    bare.swallowing = True
    with pytest.raises(UnavailableError, match="another checksum"):
        at(server).put("run/a", memoryview(DATA[::-1]))


def test_a_claim_that_was_swallowed_is_not_held(bare: BareS3, server: AnsweringServer) -> None:
    """A rival's record has as many bytes: they are read."""
    at(server).put("run/a", memoryview(b"rival's"))
    bare.swallowing = True
    assert at(server).put_if_absent("run/a", memoryview(b"my own.")) is False
    server.answer = lambda asked: Answer(412) if asked.method == "PUT" else bare(asked)
    assert at(server).put_if_absent("run/a", memoryview(b"rival's")) is True
    for missing in (Answer(404), refusal(404, "NoSuchKey")):
        server.answer = lambda asked, missing=missing: (  # type: ignore[misc]
            missing if asked.method == "GET" and "prefix" not in asked.query else bare(asked)
        )
        with pytest.raises(UnavailableError, match="no object is there"):
            at(server).put_if_absent("run/b", memoryview(b"my own."))


@cases("status", [405, 501])
def test_a_service_without_conditional_creates_says_so(status: int) -> None:
    """It is an answer, and no outage: nothing is sent again."""
    with AnsweringServer(BareS3(condition=Answer(status))) as server:
        store = at(server)
        with pytest.raises(NotSupportedError):
            store.put_if_absent("run/a", memoryview(DATA))
        assert requests(server) == ["PUT"]
        store.put("run/a", memoryview(DATA))
        assert store.get("run/a") == DATA


@pytest.mark.parametrize("batch", WITHOUT_BATCH.values(), ids=WITHOUT_BATCH)
def test_objects_are_deleted_singly_where_batches_are_refused(
    batch: Answer, bare: BareS3, server: AnsweringServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Learned and said once; and the listing shows that they are gone."""
    caplog.set_level(logging.INFO, "spotguard.providers")
    bare.batch = batch
    store = at(server)
    bare.objects.update({f"prefix/run/{each}": b"" for each in "abcd"})
    store.delete(["run/a", "run/b"])
    assert requests(server) == ["POST", "DELETE", "DELETE", "LIST"]
    store.delete(["run/c", "run/none"])
    assert requests(server) == ["DELETE", "DELETE", "LIST"]
    assert [*bare.objects] == ["prefix/run/d"]
    assert len([each for each in caplog.records if "deleted one by one" in each.message]) == 1


def test_only_directories_of_deleted_objects_are_listed(bare: BareS3, server: AnsweringServer) -> None:
    """The rest of the run may be large."""
    bare.batch = Answer(501)
    at(server).delete(["run/1/a", "run/1/b", "run/2/a", "run/3"])
    listed = [asked.query["prefix"] for asked in server.asked if "list-type" in asked.query]
    assert sorted(listed) == ["prefix/run/1/", "prefix/run/2/a", "prefix/run/3"]


@pytest.mark.parametrize("answer", [Answer(204, {"x-amz-request-id": "7A"}), refusal(404, "NoSuchKey")])
def test_a_single_delete_with_an_answer_of_s3_is_not_looked_at(
    answer: Answer, bare: BareS3, server: AnsweringServer
) -> None:
    bare.batch = Answer(501)
    server.answer = lambda asked: answer if asked.method == "DELETE" else bare(asked)
    at(server).delete(["run/a", "run/b"])
    assert requests(server) == ["POST", "DELETE", "DELETE"]


def test_single_deletes_that_are_refused_too_are_the_error(bare: BareS3, server: AnsweringServer) -> None:
    """And the next deletion tries a batch again."""

    def answer(asked: Asked) -> Answer:
        return refusal(403, "AccessDenied") if asked.method in ("POST", "DELETE") else bare(asked)

    server.answer = answer
    bare.objects["prefix/run/a"] = b""
    store = at(server)
    for _ in range(2):
        with pytest.raises(DeniedError, match="AccessDenied"):
            store.delete(["run/a", "run/b"])
        assert requests(server) == ["POST", "DELETE"]


@pytest.mark.parametrize("batch", [None, Answer(501)], ids=["batch", "singly"])
def test_a_deletion_that_was_swallowed_is_an_error(
    batch: Answer | None, bare: BareS3, server: AnsweringServer
) -> None:
    """The answer names no key, and the listing still does."""
    bare.batch, bare.swallowing = batch, True
    bare.objects["prefix/run/a"] = b""
    with pytest.raises(UnavailableError, match="prefix/run/a"):
        at(server).delete(["run/a", "run/none"])


def listing(entries: str, more: str = "<IsTruncated>false</IsTruncated>") -> Answer:
    return Answer(200, {}, f"<ListBucketResult>{more}{entries}</ListBucketResult>".encode())


OTHER_LISTINGS = {
    "of another prefix": listing("<Contents><Key>other/a</Key><Size>1</Size></Contents>"),
    "the same page for ever": listing(
        "<Contents><Key>prefix/run/a</Key><Size>1</Size></Contents>",
        "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>",
    ),
    "more without a token": listing("", "<IsTruncated>true</IsTruncated>"),
    "a size of no number": listing("<Contents><Key>prefix/run/a</Key><Size>many</Size></Contents>"),
    "a date of no time": listing(
        "<Contents><Key>prefix/run/a</Key><Size>1</Size><LastModified>soon</LastModified></Contents>"
    ),
}


@cases("name", OTHER_LISTINGS)
def test_another_listing_than_the_wanted_one_is_an_error(name: str) -> None:
    """A cache that ignores queries gives one."""
    with AnsweringServer(lambda asked: OTHER_LISTINGS[name]) as server, pytest.raises(UnavailableError):
        list(at(server).list("run/"))


HOSTILE = {
    "a region of no name": Answer(301, {"x-amz-bucket-region": "../../etc"}, error_body("PermanentRedirect")),
    "a region of no name, in words": Answer(
        400, {}, error_body("AuthorizationHeaderMalformed", "<Region>a b</Region>")
    ),
    "a redirect to where it came from": Answer(307, {"x-amz-bucket-region": "us-east-1"}),
    "a code with parts": Answer(400, {}, b"<Error><Code><a/></Code></Error>"),
    "two codes": Answer(400, {}, b"<Error><Code>A</Code><Code>B</Code></Error>"),
    "an error of text": Answer(500, {}, b"<x><Error>no</Error></x>"),
    "two errors": Answer(500, {}, b"<x><Error>no</Error><Error/></x>"),
    "a list in place of metadata": Answer(400, {}, b"<x><ResponseMetadata>no</ResponseMetadata></x>"),
    "entities": Answer(403, {}, b'<!DOCTYPE a [<!ENTITY b "c">]><Error><Code>&b;&d;</Code></Error>'),
    "deep XML": Answer(400, {}, b"<a>" * 3000 + b"</a>" * 3000),
    "no XML": Answer(200, {"ETag": '"e"', "Content-Type": "application/json"}, b"[]"),
    "half of a date": Answer(200, {"Last-Modified": "Mon, 99"}, b""),
}


@pytest.mark.parametrize("answer", HOSTILE.values(), ids=HOSTILE)
def test_no_exception_of_botocore_leaves_the_store(answer: Answer) -> None:
    """Whatever an answer does to a parser: every verb raises an error of a store, or believes it."""
    with AnsweringServer(lambda asked: answer) as server:
        store = at(server)
        for name, verb in VERBS.items():
            server.asked.clear()
            if name == "get" and answer.status == 200 and "ETag" in answer.headers:
                continue  # it is an object's answer
            with pytest.raises(StoreError) as raised:
                verb(store)
            assert "\n" not in str(raised.value)
            assert len(server.asked) <= 4


def test_settings_that_make_no_client_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore meets them when it makes one: no request is sent, and none is repeated."""
    with AnsweringServer(BareS3()) as server:
        with pytest.raises(MisconfiguredError, match="region"):
            at(server, "&region=a_b..c").put("run/a", memoryview(DATA))
        with pytest.raises(MisconfiguredError, match="nobody"):
            at(server, "&profile=nobody").put("run/a", memoryview(DATA))
        assert server.asked == []
