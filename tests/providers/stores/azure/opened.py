"""An account of Azure's as a test plays it: what it answers, and how a store is opened that asks it."""

from __future__ import annotations

import base64
from collections.abc import Callable

from spotguard.providers.stores.base import BlobStore
from tests.fakes.answering import Answer

ACCOUNT = "account"
KEY = base64.b64encode(b"a key of this test").decode()

CREATED = Answer(201, {"ETag": '"0x1"', "Last-Modified": "Sat, 21 Nov 2026 20:00:00 GMT"})


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
