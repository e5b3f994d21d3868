"""S3 by moto: conditional creates that are atomic and checksums that it gives back; it refuses no wrong checksum or key."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import requests

from tests.servers.program import Server

PROGRAM = Path(__file__).with_name("moto_program.py")

ACCESS_KEY, SECRET_KEY = "moto", "moto-secret"
REGION = "us-east-1"


def s3_environ(endpoint: str, access_key: str, secret_key: str) -> dict[str, str]:
    """The variables by which every AWS SDK finds an S3 of one's own."""
    return {
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": secret_key,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,  # the only one of the two that botocore reads
    }


class Moto(Server):
    #: Objects in one answer to a list: S3 gives a thousand, and so many take half a minute to put here.
    PAGE = 50

    def __init__(self, program: str) -> None:
        super().__init__("moto")
        self._python = Path(program).with_name("python")
        self._buckets = itertools.count(1)

    def commands(self) -> Sequence[Sequence[str]]:
        port = self.port()
        self.endpoint = f"http://127.0.0.1:{port}"
        # -P: moto must not find this file instead of itself, beside its program.
        return [[str(self._python), "-P", str(PROGRAM), "-H", "127.0.0.1", "-p", str(port)]]

    def environment(self) -> Mapping[str, str]:
        return {"MOTO_S3_DEFAULT_MAX_KEYS": str(self.PAGE)}

    def answers(self) -> bool:
        return requests.get(f"{self.endpoint}/moto-api/data.json", timeout=60).ok

    def environ_at(self, endpoint: str) -> dict[str, str]:
        return s3_environ(endpoint, ACCESS_KEY, SECRET_KEY)

    def fresh(self) -> str:
        bucket = f"bucket-{os.getpid()}-{next(self._buckets)}"
        requests.put(f"{self.endpoint}/{bucket}", timeout=60).raise_for_status()
        return f"s3://{bucket}"
