"""What the tests of the transport carry: a body there, an answer back, and a server that gives it back."""

from __future__ import annotations

from spotguard.providers.stores.http import Transport
from tests.fakes.answering import Answer, Asked


def get(link: Transport, url: str) -> bytes:
    response = link.carry("GET", url, {}, None)
    return bytes(response.raw.read())


def put(link: Transport, url: str, body: bytes | memoryview) -> int:
    response = link.carry("PUT", url, {"Content-Length": str(len(body))}, body)
    _ = response.content
    return response.status_code


def echo(asked: Asked) -> Answer:
    return Answer(body=asked.body)
