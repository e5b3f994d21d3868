"""An account of Azure's as a test plays it: what it answers, and how a store is opened that asks it."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Callable
from dataclasses import replace

from spotguard.providers.stores.base import BlobStore
from tests.fakes.answering import Answer, AnsweringServer, Asked

ACCOUNT = "account"
KEY = base64.b64encode(b"a key of this test").decode()

CREATED = Answer(201, {"ETag": '"0x1"', "Last-Modified": "Sat, 21 Nov 2026 20:00:00 GMT"})


def azure(answer: Callable[[Asked], Answer], tls: ssl.SSLContext | None = None) -> AnsweringServer:
    """A server whose answers have the headers by which Azure's are known, whatever else they say."""

    def signed(asked: Asked) -> Answer:
        said = answer(asked)
        return replace(
            said, headers={"x-ms-request-id": "of-this-answer", "x-ms-version": "2026-02-06", **said.headers}
        )

    return AnsweringServer(signed, tls)


def refused(status: int, code: str = "") -> Answer:
    return Answer(status, {"x-ms-error-code": code} if code else {})


def part(data: bytes, start: int, total: int) -> Answer:
    """A range of a blob."""
    headers = {
        "Content-Range": f"bytes {start}-{start + len(data) - 1}/{total}",
        "x-ms-blob-type": "BlockBlob",
        "ETag": '"0x1"',
        "Last-Modified": "Sat, 21 Nov 2026 20:00:00 GMT",
    }
    return Answer(206, headers, data)


#: Opens a store whose account is at an endpoint of the test; more words go into its connection string.
Opened = Callable[..., BlobStore]
