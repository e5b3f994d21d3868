"""The HTTP client for link-local metadata services: it returns an answer or a failure in bounded time.

It uses `requests`' adapter without its `Session`, because a session does things that must not happen here:

- It takes proxies and netrc from the environment. The clouds refuse forwarded requests, and a proxy would answer for
  another machine.
- It follows redirects, and reads a redirect's whole body without a limit even if it does not follow.
- It keeps cookies.

An agent polls during the machine's whole life: 0.16 ms of CPU a request, against 0.27 ms through a session.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter

from ..errors import UsageError
from ..health import Health, blind, wrong_server

#: Bytes. The largest answer in use is an instance identity document of some 500 bytes. A captive portal's page fits too,
#: so that the client can report it as one.
MAX_BODY = 64 * 1024
#: Bytes of one answer on the wire, headers included: the largest body that any caller allows (Azure's), and some more.
_MOST = 1280 * 1024

#: Seconds for one whole request, connecting included. The services answer within milliseconds; the vendor's own watcher for
#: AWS also allows 2 (aws-node-termination-handler, pkg/ec2metadata).
TIMEOUT = 2.0


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """A server's complete answer."""

    status: int
    #: Header names, which compare without case, and values.
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why there is no usable answer."""

    kind: Literal["timeout", "unreachable", "too-large", "redirect", "garbage"]
    #: One line that names the request: "PUT http://169.254.169.254/latest/api/token: no answer in 2 s".
    detail: str
    #: Whether an open connection broke, so that the same request may succeed on a new one.
    dropped: bool = False
    #: The status of an answer that was not read further, or did not end; 0 if there was none.
    status: int = 0


def coded(health: Health, answer: MetadataAnswer | Failure) -> Health:
    """Return `health` with the answer's status unless it is SEEING: failed polls are counted by status."""
    return health if health.seeing else replace(health, code=answer.status)


def no_answer(failure: Failure, *, timeout: str, unreachable: str, stranger: str) -> Health:
    """Return the health of a source that got no answer, with the cloud's advice for each kind of failure."""
    match failure.kind:
        case "timeout":
            return blind("timeout", failure.detail, timeout)
        case "unreachable":
            return blind("unreachable", failure.detail, unreachable)
        case "redirect" | "too-large":
            return wrong_server(failure.detail, stranger)
    return blind("garbage", failure.detail, stranger)


def server_named(answer: MetadataAnswer) -> str:
    """Return the server's name as it announces itself, " from 'nginx'", or "" if it does not."""
    server = answer.headers.get("Server", "")
    return f" from {server[:40]!a}" if server else ""


def parse_json(body: bytes) -> Any:
    """Return the body's JSON value, or None if it is not JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):  # not JSON, not text, or nested too deeply on purpose
        return None


def parse_endpoint(url: str, origin: str) -> str:
    """Return the base URL in normal form: http, an IP address, no path.

    Host names are refused: they would make notices depend on DNS, and DNS fails while a machine goes down.

    Args:
        url: the URL as the user wrote it.
        origin: the option or the variable that held it, for the message.

    Raises:
        UsageError: the URL has another form.
    """
    wanted = f"{origin} {url!r}: expected http:// and an IP address, as in http://127.0.0.1:1338"
    try:
        parts = urlsplit(url)
        port = parts.port
        address = ipaddress.ip_address(parts.hostname or "")
    except ValueError as error:
        raise UsageError(f"{wanted} or http://[::1]:1338") from error
    if parts.scheme != "http":
        raise UsageError(f"{wanted}; a metadata service speaks plain http only")
    if parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise UsageError(f"{wanted}, and nothing before or after it")
    host = f"[{address}]" if address.version == 6 else str(address)
    return f"http://{host}" if port in (None, 80) else f"http://{host}:{port}"


class MetadataClient:
    """A client of one server, with one connection that it keeps while the server does. For one thread.

    Args:
        timeout: seconds that a request may take at most.
        max_body: bytes that an answer's body may have at most.
    """

    def __init__(self, endpoint: str, *, timeout: float = TIMEOUT, max_body: int = MAX_BODY) -> None:
        self.endpoint = endpoint
        self._timeout = timeout
        self._max_body = max_body
        self._adapter = _MetadataAdapter(max_retries=0)
        #: The status of the answer in progress, which may never end.
        self._status = 0

    def prepare(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> requests.PreparedRequest:
        """Return a request for `send`, which can be sent repeatedly; callers may assign to its `headers`."""
        # "identity": a compressed body would have to be unpacked before its size is known.
        fixed = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "spotguard"}
        url = self.endpoint + path
        return requests.Request(method, url, headers={**fixed, **headers}, data=body).prepare()

    def send(
        self, request: requests.PreparedRequest, *, timeout: float | None = None, again: bool = True
    ) -> MetadataAnswer | Failure:
        """Send the request and return the answer or a failure, within `timeout` seconds in total.

        Args:
            again: whether to send a request whose connection broke once more. Callers that count requests pass False,
                and so do those that send a POST.
        """
        seconds = self._timeout if timeout is None else min(timeout, self._timeout)
        end = time.monotonic() + seconds
        try:
            return self._send(request, seconds)
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            if not (again and _dropped(error)):
                return _failure(request, error, seconds, self._status)
        # A server may close a kept connection while this client writes to it (RFC 9112, 9.6). GET and PUT are idempotent.
        # So a second try on a new connection, within the same time, saves a blind second.
        try:
            return self._send(request, max(end - time.monotonic(), 0.001))
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            return _failure(request, error, seconds, self._status)

    def close(self) -> None:
        self._adapter.close()

    def _send(self, request: requests.PreparedRequest, seconds: float) -> MetadataAnswer | Failure:
        total, self._status = urllib3.Timeout(total=seconds), 0
        response = self._adapter.send(request, stream=True, timeout=total, proxies={})  # type: ignore[arg-type]
        self._status = response.status_code
        try:
            if response.is_redirect:
                where = _shown(response.headers["location"])
                what = f"{_line(request)}: {response.status_code}, redirected to {where}"
                return Failure("redirect", what, status=response.status_code)
            # One byte more than allowed shows that there is more. Not decoded: see `prepare`.
            body = response.raw.read(self._max_body + 1, decode_content=False)
            if len(body) > self._max_body:
                what = f"{_line(request)}: more than {self._max_body} bytes"
                return Failure("too-large", what, status=response.status_code)
            if response.raw.length_remaining:
                what = f"{_line(request)}: the connection broke within the answer"
                return Failure("unreachable", what, status=response.status_code)
            return MetadataAnswer(response.status_code, response.headers, body)
        finally:
            # A body read to its end has already released its connection. Any other body is dropped with its connection.
            response.raw.close()


class _TooLarge(OSError):
    """One answer exceeded the limit of bytes on the wire."""


class _WholeAnswerSocket(socket.socket):
    """A socket whose timeout covers all that it receives until the timeout is set again. So does its limit of bytes.

    The ordinary timeout starts again with every byte, so a server that trickles would hold its client for ever. It can
    trickle the headers as well as the body. urllib3 sets the timeout once before each answer.
    """

    _end: float | None = None
    _received = 0

    def settimeout(self, value: float | None, /) -> None:
        # The machine's own clock, whichever Clock the caller holds: the kernel's timeouts are real time.
        self._end = None if value is None else time.monotonic() + value
        self._received = 0
        super().settimeout(value)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0, /) -> int:
        if self._end is not None:
            seconds = self._end - time.monotonic()
            if seconds <= 0:
                raise TimeoutError("the answer took too long")
            super().settimeout(seconds)
        # Headers count: http.client reads any number of answers with status 100 before the final one (seen: 97 MiB).
        if self._received > _MOST:
            raise _TooLarge("the answer is too large")
        count = super().recv_into(buffer, nbytes, flags)
        self._received += count
        return count


class _MetadataConnection(urllib3.connection.HTTPConnection):
    def connect(self) -> None:
        super().connect()
        plain = self.sock
        self.sock = _WholeAnswerSocket(plain.family, plain.type, plain.proto, fileno=plain.detach())
        self.sock.settimeout(self.timeout)


class _MetadataPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _MetadataConnection


class _MetadataAdapter(HTTPAdapter):
    """`requests`' adapter over these connections, for http only: other schemes have no pool class."""

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **kwargs: Any) -> None:
        self.poolmanager = urllib3.PoolManager(num_pools=1, maxsize=1, block=False)
        self.poolmanager.pool_classes_by_scheme = {"http": _MetadataPool}


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and all that it wraps: urllib3 and requests also keep causes in `args` and `reason`."""
    yield error
    inner = (*error.args, getattr(error, "reason", None), error.__cause__)
    for cause in inner:
        if isinstance(cause, BaseException):
            yield from _chain(cause)


def _dropped(error: Exception) -> bool:
    """Return whether an open connection broke: reset, or closed without an answer."""
    return any(isinstance(cause, ConnectionError) for cause in _chain(error)) and not any(
        isinstance(cause, urllib3.exceptions.NewConnectionError) for cause in _chain(error)
    )


def _failure(request: requests.PreparedRequest, error: Exception, seconds: float, status: int) -> Failure:
    causes = list(_chain(error))
    if any(
        isinstance(cause, (urllib3.exceptions.TimeoutError, TimeoutError)) for cause in causes
    ) and not any(isinstance(cause, urllib3.exceptions.NewConnectionError) for cause in causes):
        return Failure("timeout", f"{_line(request)}: no answer in {seconds:g} s", status=status)
    if any(isinstance(cause, _TooLarge) for cause in causes):
        return Failure(
            "too-large", f"{_line(request)}: more than {_MOST} bytes with its headers", status=status
        )
    for cause in causes:
        if isinstance(cause, OSError) and not isinstance(cause, requests.RequestException):
            why = f"{_line(request)}: {cause.strerror or 'the connection broke'}"
            return Failure("unreachable", why, dropped=_dropped(error), status=status)
    for cause in causes:
        if isinstance(cause, http.client.HTTPException):
            return Failure("garbage", f"{_line(request)}: not HTTP: {_shown(str(cause))}", status=status)
    return Failure("garbage", f"{_line(request)}: {type(causes[-1]).__name__}", status=status)


def _line(request: requests.PreparedRequest) -> str:
    return f"{request.method} {request.url}"


def _shown(text: str) -> str:
    """Return a server's text, fit for one line of a log."""
    return ascii(text[:80])
