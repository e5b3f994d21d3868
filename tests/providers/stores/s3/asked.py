"""What tests of S3 ask and are answered: its errors as it writes them, and what a signature says."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.factory import open_store
from tests.fakes.answering import Answer, AnsweringServer, Asked

DATA = bytes(range(256)) * 40

#: S3's answer to an upload.
STORED = Answer(200, {"ETag": '"5f3c"'})

VERBS: dict[str, Callable[[BlobStore], object]] = {
    "put": lambda store: store.put("run/a", memoryview(DATA)),
    "put_if_absent": lambda store: store.put_if_absent("run/a", memoryview(DATA)),
    "get": lambda store: store.get("run/a"),
    "read_into": lambda store: store.read_into("run/a", 0, memoryview(bytearray(7))),
    "list": lambda store: list(store.list("run/")),
    "delete": lambda store: store.delete(["run/a"]),
}


def error_body(code: str, more: str = "") -> bytes:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>says S3</Message>{more}</Error>'.encode()


def refusal(status: int, code: str, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(status, {"Content-Type": "application/xml", **(headers or {})}, error_body(code))


def at(server: AnsweringServer, options: str = "") -> BlobStore:
    return open_store(f"s3://bucket/prefix?endpoint={server.url}{options}")


def key_of(asked: Asked) -> str:
    """Whose signature a request bears."""
    return asked.headers["authorization"].partition("Credential=")[2].partition("/")[0]


def region_of(asked: Asked) -> str:
    return asked.headers["authorization"].partition("Credential=")[2].split("/")[2]
