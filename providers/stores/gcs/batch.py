"""Batches of deletes: many in one request, in the form of Google's JSON API, with the answer to each.

(https://cloud.google.com/storage/docs/batch: the answers come in the order of the calls.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from email.message import Message
from email.parser import BytesParser

import requests

BOUNDARY = "==call=="
CONTENT_TYPE = f'multipart/mixed; boundary="{BOUNDARY}"'

#: Calls in one batch, by the page above.
MOST = 100


def batch(targets: Sequence[str]) -> bytes:
    """Return a body that deletes every target. A target is a path with its query."""
    calls = (
        f"--{BOUNDARY}\r\nContent-Type: application/http\r\nContent-ID: <{number}>\r\n\r\nDELETE {target} HTTP/1.1\r\n\r\n\r\n"
        for number, target in enumerate(targets)
    )
    return "".join([*calls, f"--{BOUNDARY}--\r\n"]).encode()


def answers(response: requests.Response, asked: Sequence[str]) -> Iterator[requests.Response]:
    """Yield the answer to each call, as if the call had been sent alone.

    Raises:
        ValueError: the response is not an answer to a batch, or not to all of it.
    """
    head = f"Content-Type: {response.headers.get('Content-Type', '')}\r\n\r\n".encode("latin-1")
    parts = BytesParser().parsebytes(head + response.content).get_payload()
    if not isinstance(parts, list):
        raise ValueError("it has no parts")
    for target, part in zip(asked, parts, strict=True):
        one = _alone(target, part)
        one.headers.update(response.headers)  # whoever gave the whole gave each part
        yield one


def _alone(target: str, part: Message | str) -> requests.Response:
    words = part.get_payload(decode=True) if isinstance(part, Message) else None
    if not isinstance(words, bytes):
        raise ValueError("a part of it is no message")
    first, _, rest = words.lstrip().partition(b"\n")
    message = BytesParser().parsebytes(rest)
    one = requests.Response()
    one.status_code = int(first.partition(b" ")[2].partition(b" ")[0])
    body = message.get_payload(decode=True)
    one._content = body if isinstance(body, bytes) else b""
    one.request = requests.Request("DELETE", f"https://batch{target}").prepare()
    return one
