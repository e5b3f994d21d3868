"""The HTTP transport below every SDK: one open connection for each thread, detection of stalls, and deadlines.

An SDK builds, signs and parses requests; this module carries them. Three reasons not to leave that to each SDK:

- Each thread of a save has a connection of its own, opened before the notice (law 8). A shared pool hands out any free
  connection, and opens another if none is free.
- urllib3 sends under the *connect* timeout, and socket.sendall with 2 s for 32 MiB allows 2 s for all of it. On a link of
  100 Mbit/s every put would fail. It reads with a new timeout for each packet, so a trickle may last for ever. Here a
  transfer that moves, in either direction, has all the remaining time, and one that stalls is given up sooner.
- Between two pieces a waiting thread may cancel (`sent`). Then no more bytes are sent.

The transport refuses redirects, and uses the environment's proxies like any program (never for metadata, by law 5, whose
client is another one).
"""

from __future__ import annotations

import fcntl
import http.client
import io
import os
import socket
import ssl
import struct
import termios
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Protocol
from urllib.parse import urlsplit

import requests
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.utils import get_environ_proxies, select_proxy
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util.wait import wait_for_read

from ..clock import Clock, SystemClock
from .base import StoreMovement
from .tls import SettingMistake, causes, check_certificates, check_handshake, check_plain

#: Seconds to connect; seconds within which some bytes must move, in either direction.
CONNECT, STALL = 2.0, 10.0
#: Useful number of puts at once to a cloud: one connection gives 50 to 95 MB/s, and 12 frames of 32 MiB stay below law 9's bound.
CONNECTIONS = 12
#: Bytes between two checks of the time. Smaller pieces cost a training thread in pure Python the GIL more often.
PIECE = 2**20
#: Bytes that the kernel takes ahead of the network. The default is up to 4 MiB a connection (tcp_wmem), which is a whole
#: object. Those bytes would count as sent, could not be cancelled, and would look like a stalled object.
_AHEAD = 2**19
#: Bytes of one write to TLS, which takes all of them or fails, however well they move.
_RECORDS = 128 * 2**10
#: Bytes that TLS returns from one read, at most (RFC 8446, 5.1); and the number of such reads between two checks of the
#: time. With a check at each read, TLS cost a tenth more.
_RECORD, _LOOK = 2**14, 8

#: What plain HTTP may meet at a port that speaks TLS, besides a 400.
_NO_HTTP = (http.client.BadStatusLine, ConnectionResetError, BrokenPipeError)

Sent = Callable[[int], None]
#: Called with the headers of an answer.
Heard = Callable[[Mapping[str, str]], None]


class _Request(threading.local):
    """The request that the calling thread sends now. (A connection has no other way to know.)"""

    until: float | None = None
    sent: Sent | None = None
    clock: Clock = SystemClock()
    heard: Heard | None = None
    #: The exception by which `sent` ended the request.
    ended: BaseException | None = None
    #: The server has not answered before, so its protocol may be another one than the endpoint's.
    unsure = True

    def tell(self, count: int) -> None:
        if self.sent is None:
            return
        try:
            self.sent(count)
        except BaseException as error:
            self.ended = error
            raise

    def left(self) -> float:
        """Return the seconds within which some bytes must move.

        Raises:
            TimeoutError: no time remains.
        """
        if self.until is None:
            return STALL
        seconds = self.until - self.clock.monotonic()
        if seconds <= 0:
            raise TimeoutError("the time for this request is over")
        return min(STALL, max(1.0, seconds / 3), seconds)  # a stall leaves time for another try


_now = _Request()


class _Queue:
    """The bytes of a body that the kernel has taken and the other side has not. It is checked when nothing else moves.

    A send buffer of some MiB takes no more until a third of it is free (Linux: sk_stream_is_writeable). On a slow link that
    lasts seconds in which nothing is wrong.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._held: int | None = None

    def moves(self) -> bool:
        """Return whether the queue is shorter than at the last check; True at the first check, when nothing is known."""
        before, self._held = self._held, self._bytes()
        return before is None or self._held < before

    def _bytes(self) -> int:
        answer = fcntl.ioctl(self._sock.fileno(), termios.TIOCOUTQ, bytes(4))  # tcp(7): SIOCOUTQ
        return int(struct.unpack("i", answer)[0])


class _TimedBody(io.RawIOBase):
    """The file that a response is read from. It checks the time before some reads, and always after a small read."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._held = sock.makefile("rb", buffering=0)  # a socket closes when its last file closes
        self._unseen = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        if self._unseen == 0:
            self._sock.settimeout(_now.left())
        count = self._sock.recv_into(buffer)
        StoreMovement.add()
        self._unseen = (self._unseen + 1) % _LOOK if count >= _RECORD else 0
        return count

    def close(self) -> None:
        self._held.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self.fp = io.BufferedReader(_TimedBody(sock))


class _Sending(HTTPConnection):
    """A connection that sends a body in pieces."""

    response_class = _Response
    #: Bytes of one write.
    at_once = PIECE

    def _new_conn(self) -> socket.socket:
        sock = super()._new_conn()
        with suppress(OSError):  # some sandboxes' own network stacks lack the option
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _AHEAD)
        return sock

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()  # under the connect timeout
        view = data if isinstance(data, bytes) and len(data) <= PIECE else memoryview(data).cast("B")
        for at in range(0, len(view), PIECE):
            piece = view[at : at + PIECE]
            self._push(piece)
            if len(view) > PIECE // 256:
                _now.tell(len(piece))

    def _push(self, piece: Any) -> None:
        """Hand the whole piece to the kernel. Not by sendall, whose single timeout covers all of it."""
        at, queue = 0, _Queue(self.sock)
        while at < len(piece):
            self.sock.settimeout(_now.left() / 2)  # two checks of a queue show whether it moves
            try:
                # After a timeout, TLS requires exactly the same bytes again: SSL_write(3).
                at += self.sock.send(piece[at : at + self.at_once])
                queue = _Queue(self.sock)
            except TimeoutError:
                if not queue.moves():
                    raise

    def getresponse(self) -> Any:
        queue = _Queue(self.sock)
        while not wait_for_read(self.sock, _now.left() / 2):
            if not queue.moves():
                raise TimeoutError("no answer comes")
        # The time that remains now, not the time that remained before the body was sent.
        self.timeout = _now.left()
        return super().getresponse()


class _SendingTLS(_Sending, HTTPSConnection):
    at_once = _RECORDS

    def connect(self) -> None:
        try:
            super().connect()
        except ssl.SSLError as error:
            if _now.unsure:
                check_handshake(self.host, self.port, error)
            raise


class _StorePool(HTTPConnectionPool):
    ConnectionCls = _Sending


class _PoolTLS(HTTPSConnectionPool):
    ConnectionCls = _SendingTLS


class _StoreAdapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = {"http": _StorePool, "https": _PoolTLS}

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **kwargs)
        manager.pool_classes_by_scheme = {"http": _StorePool, "https": _PoolTLS}
        return manager


class Transport(BaseAdapter):
    """A `requests` adapter to mount in a session (`google-cloud-storage`, `azure-core`), or to `carry` a request.

    Args:
        ca: a file of certificates to trust instead of the usual ones; None: REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE, else
            certifi's.
        proxied: whether to use the environment's proxies. Tokens over plain HTTP come from the metadata service, and must
            never use them (law 5).
    """

    def __init__(self, ca: str | None = None, *, proxied: bool = True) -> None:
        super().__init__()
        self._proxied = proxied
        self._ca = ca or os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
        self._local = threading.local()
        self._ca_checked = False
        #: The schemes and places of servers that have answered in the protocol of their endpoint. What they answer in another one
        #: is no mistake in the settings, but an outage.
        self._answered: set[tuple[str, str]] = set()

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """Send the request, as `requests` does. This transport's timeouts apply, whichever timeout the SDK passes.

        Raises:
            requests.RequestException: the request failed.
            TimeoutError: the time of `within` ran out while the body was sent.
        """
        trusted = self._ca if self._ca and verify is not False else verify
        proxies = (proxies or {}) if self._proxied else {}
        url = str(request.url)
        if url.startswith("https:") and isinstance(trusted, str) and not self._ca_checked:
            check_certificates(trusted)
            self._ca_checked = True
        server = urlsplit(url)[:2]
        _now.unsure = server not in self._answered
        unsure = _now.unsure and url.startswith("http:") and select_proxy(url, proxies) is None
        try:
            response = self._mine().send(
                request,
                stream=stream,
                timeout=(min(CONNECT, _now.left()), _now.left()),
                verify=trusted,
                cert=cert,
                proxies=proxies,
            )
        except OSError as error:
            if unsure and _now.ended is None and any(isinstance(each, _NO_HTTP) for each in causes(error)):
                _check_plain(url)
            raise
        # Stores explain a 400 in XML or JSON, and a port that speaks TLS does not.
        kind = response.headers.get("Content-Type", "")
        plain = response.status_code != 400 or "xml" in kind or "json" in kind
        if unsure and not plain:
            try:
                _check_plain(url)
            except SettingMistake:
                response.close()
                raise
        if plain:
            self._answered.add(server)
        if _now.heard is not None:
            _now.heard(response.headers)
        return response

    def carry(self, method: str, url: str, headers: Mapping[str, str], body: Any) -> requests.Response:
        """Send a signed request as it is: nothing is quoted, added, or followed. The response is a stream."""
        request = requests.PreparedRequest()
        request.method, request.url, request.body = method, url, body
        request.headers = requests.structures.CaseInsensitiveDict(headers)
        return self.send(request, stream=True, proxies=get_environ_proxies(url))

    def close(self) -> None:
        """Close the calling thread's connections; other threads' connections close when those threads end."""
        adapter = getattr(self._local, "adapter", None)
        if adapter is not None:
            adapter.close()

    def _mine(self) -> _StoreAdapter:
        adapter: _StoreAdapter | None = getattr(self._local, "adapter", None)
        if adapter is None:
            adapter = self._local.adapter = _StoreAdapter(pool_connections=4, pool_maxsize=1)
        return adapter


def _check_plain(url: str) -> None:
    parts = urlsplit(url)
    check_plain(parts.hostname or "", parts.port or 80, min(CONNECT, _now.left()))


@contextmanager
def within(timeout: float | None, sent: Sent | None = None, clock: Clock | None = None) -> Iterator[None]:
    """Limit every request that the calling thread sends inside to `timeout` seconds in total.

    Args:
        timeout: seconds for all requests together; None: no limit.
        sent: called with the bytes of each piece of a large body that was handed to the network. An exception from it
            ends the request, closes its connection, and leaves here unchanged, whatever an SDK made of it.
        clock: the clock for `timeout`.
    """
    clock = clock or SystemClock()
    outer = (_now.until, _now.sent, _now.clock, _now.ended)
    _now.until = None if timeout is None else clock.monotonic() + timeout
    _now.sent, _now.clock, _now.ended = sent, clock, None
    ended: BaseException | None = None
    try:
        yield
    except Exception as error:
        ended = _now.ended
        if ended is None or ended is error:
            raise
    finally:
        _now.until, _now.sent, _now.clock, _now.ended = outer
    if ended is not None:
        raise ended


@contextmanager
def overhearing(heard: Heard) -> Iterator[None]:
    """Call `heard` with the headers of every answer that the calling thread receives inside.

    The headers tell when an answer was given, whatever the store makes of it. For checks of a store, not for a save.
    """
    outer, _now.heard = _now.heard, heard
    try:
        yield
    finally:
        _now.heard = outer


def remaining(timeout: float | None) -> Callable[[], float | None]:
    """Return a function that returns the rest of `timeout` from now on, for an operation of several requests.

    For a `timeout` of None it returns None.
    """
    until = None if timeout is None else _now.clock.monotonic() + timeout
    return lambda: None if until is None else until - _now.clock.monotonic()


class _Body(Protocol):
    def read(self, amt: int, /) -> bytes: ...


def fill(body: _Body, buffer: memoryview) -> int:
    """Read the body of a streamed response into `buffer`, piece by piece, under `within`; return the bytes read.

    Raises:
        requests.RequestException, urllib3.exceptions.HTTPError, OSError: the connection failed.
    """
    at = 0
    if not buffer:
        body.read(1)  # an answer that is read to its end releases its connection
    while at < len(buffer):
        data = body.read(min(PIECE, len(buffer) - at))
        if not data:
            break
        buffer[at : at + len(data)] = data
        at += len(data)
    return at
