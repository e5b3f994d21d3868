"""What the suite relies on Swift for: it refuses what a wire or a client got wrong."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.servers.swift import USER, Swift


@pytest.fixture
def s3(swift: Swift) -> Iterator[Any]:
    client = boto3.Session().client("s3")  # the default session would keep another server's keys
    yield client
    client.close()


def absent(s3: Any, bucket: str) -> bool:
    return int(s3.list_objects_v2(Bucket=bucket)["KeyCount"]) == 0


def test_a_wrong_checksum_is_refused_and_nothing_is_stored(swift: Swift, s3: Any) -> None:
    bucket = swift.fresh().removeprefix("s3://")
    right, wrong = (base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode() for data in (b"a", b"b"))
    with pytest.raises(ClientError, match="BadDigest"):
        s3.put_object(Bucket=bucket, Key="k", Body=b"a", ChecksumCRC32=wrong)
    assert absent(s3, bucket)
    with pytest.raises(ClientError, match="BadDigest"):
        s3.put_object(
            Bucket=bucket,
            Key="k",
            Body=b"a",
            ContentMD5=base64.b64encode(hashlib.md5(b"b").digest()).decode(),
        )
    assert absent(s3, bucket)
    s3.put_object(Bucket=bucket, Key="k", Body=b"a", ChecksumCRC32=right)
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"a"


def test_a_wrong_key_is_refused(swift: Swift, s3: Any) -> None:
    bucket = swift.fresh().removeprefix("s3://")
    stranger = boto3.Session(aws_access_key_id=USER, aws_secret_access_key="guessed").client("s3")
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        stranger.put_object(Bucket=bucket, Key="k", Body=b"a")
    stranger.close()
    assert absent(s3, bucket)


def test_an_existing_key_is_not_created_again(swift: Swift, s3: Any) -> None:
    """One after the other: rivals are moto's business."""
    bucket = swift.fresh().removeprefix("s3://")
    s3.put_object(Bucket=bucket, Key="k", Body=b"first", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        s3.put_object(Bucket=bucket, Key="k", Body=b"second", IfNoneMatch="*")
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"first"
