"""What the suite relies on moto for."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.servers.moto import Moto

RIVALS = 8


@pytest.fixture
def s3(moto: Moto) -> Iterator[Any]:
    client = boto3.Session().client("s3")  # the default session would keep another server's keys
    yield client
    client.close()


def test_one_of_many_rivals_for_a_key_wins(moto: Moto, s3: Any) -> None:
    bucket = moto.fresh().removeprefix("s3://")
    for race in range(5):
        start = Barrier(RIVALS)

        def claim(rival: int, race: int = race, start: Barrier = start) -> str | None:
            start.wait(30)
            try:
                s3.put_object(Bucket=bucket, Key=f"attempt-{race}", Body=b"%d" % rival, IfNoneMatch="*")
            except ClientError as error:
                return str(error.response["Error"]["Code"])
            return None

        with ThreadPoolExecutor(RIVALS) as pool:
            outcomes = list(pool.map(claim, range(RIVALS)))
        assert sorted(filter(None, outcomes)) == ["PreconditionFailed"] * (RIVALS - 1)
        stored = s3.get_object(Bucket=bucket, Key=f"attempt-{race}")["Body"].read()
        assert stored == b"%d" % outcomes.index(None)


def test_a_checksum_is_recorded_with_its_object(moto: Moto, s3: Any) -> None:
    bucket, body = moto.fresh().removeprefix("s3://"), b"bytes" * 1000
    s3.put_object(Bucket=bucket, Key="k", Body=body, ChecksumAlgorithm="CRC32")
    head = s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert base64.b64decode(head["ChecksumCRC32"]) == zlib.crc32(body).to_bytes(4, "big")


def test_a_fresh_bucket_is_empty_and_its_own(moto: Moto, s3: Any) -> None:
    first, second = moto.fresh().removeprefix("s3://"), moto.fresh().removeprefix("s3://")
    s3.put_object(Bucket=first, Key="k", Body=b"")
    assert s3.list_objects_v2(Bucket=first)["KeyCount"] == 1
    assert s3.list_objects_v2(Bucket=second)["KeyCount"] == 0
