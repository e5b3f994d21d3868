"""The refusals and the faults of Compute Engine's metadata server."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace

from ..faults import COMMON, Spoil
from ..http_server import HttpRequest, Reply

#: Headers of every answer.
HEADERS = {
    "Metadata-Flavor": "Google",
    "Server": "Metadata Server for VM",
    "X-XSS-Protection": "0",
    "X-Frame-Options": "SAMEORIGIN",
}
_PAGE = """<!DOCTYPE html>
<html lang=en>
  <meta charset=utf-8>
  <meta name=viewport content="initial-scale=1, minimum-scale=1, width=device-width">
  <title>Error {0} ({1})!!1</title>
  <p><b>{0}.</b> <ins>That’s an error.</ins>
  <p>{2} <ins>That’s all we know.</ins>
"""
_TITLES = {
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def page(status: int, why: str = "", headers: Mapping[str, str] = HEADERS) -> Reply:
    body = _PAGE.format(status, _TITLES[status], why).encode()
    return Reply(status, body, {"Content-Type": "text/html; charset=UTF-8", **headers})


def _always(status: int) -> Spoil:
    return lambda request, reply: page(status)


def waits(request: HttpRequest) -> bool:
    return "wait_for_change=true" in request.path.lower()


def _if_held(spoil: Callable[[Reply], Reply]) -> Spoil:
    return lambda request, reply: spoil(reply) if waits(request) else None


FAULTS: dict[str, Spoil] = {
    **COMMON,
    **{str(status): _always(status) for status in (403, 404, 429, 500, 503)},
    "garbage": lambda request, reply: replace(
        COMMON["garbage"](request, reply) or reply, headers=reply.headers
    ),
    # Seen on real VMs (googleapis/google-cloud-node#7688).
    "404-unsigned": lambda request, reply: replace(page(404), headers={"Content-Type": "text/html"}),
    "flavor": lambda request, reply: replace(reply, headers={**reply.headers, "Metadata-Flavor": "Vanilla"}),
    # An ETag that changes with each answer, though no value does.
    "etag": lambda request, reply: replace(reply, headers={**reply.headers, "ETag": secrets.token_hex(8)}),
    # Faults of held requests only: refused, answered at once, or never answered.
    "held-503": _if_held(lambda reply: page(503)),
    "held-not": _if_held(replace),
    "held-for-ever": _if_held(lambda reply: replace(reply, instead="hang")),
}
