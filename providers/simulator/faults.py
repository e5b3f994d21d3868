"""The faults of metadata services in the field, on demand: each fault turns a good reply into a bad one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ..errors import UsageError
from .http_server import HttpRequest, Reply

#: Function from a reply to a faulty one; it returns None if the fault does not apply to the request.
Spoil = Callable[[HttpRequest, Reply], Reply | None]

_PORTAL = b"""<!DOCTYPE html>
<html><head><title>Welcome to the guest network</title></head>
<body><h1>Please sign in</h1><form action="/login"><input name="room"></form></body></html>
"""

#: Target of the fault `redirect`.
REDIRECTED = "/login?from=metadata"

#: Bytes that are neither text nor JSON nor HTML.
_GARBAGE = bytes(range(255, 191, -1)) * 4

_HUGE = 20 * 1024 * 1024


def status(status: int) -> Spoil:
    """Return a fault that answers every request with this status."""
    return lambda request, reply: Reply(status, b"", {"Content-Type": "text/html"})


def _portal(request: HttpRequest, reply: Reply) -> Reply:
    return Reply(200, _PORTAL, {"Content-Type": "text/html; charset=utf-8", "Server": "nginx"})


def _redirect(request: HttpRequest, reply: Reply) -> Reply:
    # The target is this server itself, so that the log of requests shows a client that follows.
    return Reply(302, b"", {"Location": REDIRECTED, "Server": "nginx"})


#: Faults that any metadata service may have.
COMMON: Mapping[str, Spoil] = {
    "429": status(429),
    "500": status(500),
    "503": status(503),
    "reset": lambda request, reply: replace(reply, instead="reset"),
    "hang": lambda request, reply: replace(reply, instead="hang"),
    "slow": lambda request, reply: replace(reply, delay=10.0),
    "trickle": lambda request, reply: replace(reply, pace=0.5),
    # The right body from a foreign server, without the headers by which the real service is known.
    "foreign": lambda request, reply: replace(reply, headers={"Server": "nginx"}),
    "garbage": lambda request, reply: Reply(200, _GARBAGE, {"Content-Type": "text/plain"}),
    "portal": _portal,
    "redirect": _redirect,
    "huge": lambda request, reply: Reply(200, b"x" * _HUGE, {"Content-Type": "text/plain"}),
}


@dataclass(slots=True)
class _Active:
    spoil: Spoil
    #: End in monotonic seconds; None for no end.
    until: float | None
    #: Requests that it will still spoil; None for any number.
    left: int | None
    #: Text in the path of the requests that it spoils; "" for all.
    path: str


class Faults:
    """The active faults. Several threads may use it.

    Args:
        kinds: every fault that this service has, by name.
    """

    def __init__(self, kinds: Mapping[str, Spoil]) -> None:
        self._kinds = kinds
        self._active: dict[str, _Active] = {}
        self._lock = threading.Lock()

    def add(self, kind: str, now: float, *, seconds: float | None, count: int | None, path: str = "") -> None:
        """Switch a fault on, for a time or for a number of requests. It replaces an active fault of the same kind.

        Raises:
            UsageError: this service has no such fault.
        """
        if kind not in self._kinds:
            raise UsageError(f"unknown fault {kind!r}: expected one of {', '.join(sorted(self._kinds))}")
        until = None if seconds is None else now + seconds
        with self._lock:
            self._active[kind] = _Active(self._kinds[kind], until, count, path)

    def clear(self) -> None:
        with self._lock:
            self._active.clear()

    def spoil(self, request: HttpRequest, reply: Reply, now: float) -> Reply:
        """Return the reply as spoilt by the first active fault that applies to the request."""
        with self._lock:
            self._active = {kind: fault for kind, fault in self._active.items() if not _over(fault, now)}
            for fault in self._active.values():
                spoilt = fault.spoil(request, reply) if fault.path in request.path else None
                if spoilt is None:
                    continue
                if fault.left is not None:
                    fault.left -= 1
                return spoilt
        return reply


def _over(fault: _Active, now: float) -> bool:
    return fault.left == 0 or (fault.until is not None and now >= fault.until)
