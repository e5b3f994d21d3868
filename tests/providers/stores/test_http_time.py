"""The time of the HTTP under the SDKs: bodies may take theirs as long as they move, answers may not."""

from __future__ import annotations

import fcntl
import socket
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
import requests
import urllib3

from spotguard.providers.stores import http
from spotguard.providers.stores.http import CONNECT, PIECE, STALL, Transport, fill, remaining, within
from tests.fakes.answering import Answer, AnsweringServer
from tests.fakes.clock import ManualClock
from tests.fakes.raw_server import RawServer
from tests.providers.stores.carrying import echo, put

#: What a request that is not answered may take here: seconds that a test waits, and nothing is measured by them.
SOON = 0.2
#: More than any socket's buffers hold (net.ipv4.tcp_wmem and tcp_rmem: 4 and 6 MiB).
LARGE = 64 * PIECE

GONE = (requests.RequestException, urllib3.exceptions.HTTPError, OSError)


@contextmanager
def silent(head: bytes = b"") -> Iterator[RawServer]:
    """Takes every connection, answers `head`, and then stands still until the test is over."""
    over = threading.Event()

    def serve(connection: socket.socket, number: int) -> None:
        if head:
            connection.recv(65536)
            connection.sendall(head)
        over.wait(100)

    with RawServer(serve) as server:
        try:
            yield server
        finally:
            over.set()


def test_a_body_comes_whole_and_is_told_in_pieces() -> None:
    """The last piece is what is left."""
    body, told = bytes(range(256)) * (5 * PIECE // 512), list[int]()
    with AnsweringServer(lambda asked: Answer()) as server, within(None, told.append):
        assert put(Transport(), server.url, memoryview(body)) == 200
        assert server.asked[0].body == body
    assert told == [PIECE, PIECE, PIECE // 2]


class Link(socket.socket):
    """A connection as slow as `rate` says, by the test's clock. It keeps what timeouts it was given.

    As Python's own: the timeout of `send` is for its first byte, and that of `sendall` for all of them.
    """

    def __init__(self, connected: socket.socket, clock: ManualClock, rate: float = 2.0**60) -> None:
        super().__init__(fileno=connected.detach())
        self._clock, self._rate = clock, rate
        self.waits: list[float | None] = []

    def settimeout(self, value: float | None, /) -> None:
        self.waits.append(value)
        super().settimeout(20.0)

    def send(self, data: Any, flags: int = 0, /) -> int:
        count = super().send(data[:65536])
        self._clock.advance(count / self._rate)
        return count

    def sendall(self, data: Any, flags: int = 0, /) -> None:
        super().sendall(data)
        self._clock.advance(len(data) / self._rate)
        if len(data) / self._rate > (self.waits[-1] or 0):
            raise TimeoutError


@contextmanager
def linked(clock: ManualClock, rate: float) -> Iterator[tuple[http._Sending, Link]]:
    with AnsweringServer(lambda asked: Answer()) as server:
        connection = http._Sending(*server.url.removeprefix("http://").split(":"))  # type: ignore[arg-type]
        connection.connect()
        assert isinstance(connection.sock, socket.socket)
        connection.sock = link = Link(connection.sock, clock, rate)
        try:
            yield connection, link
        finally:
            connection.close()


def test_a_body_that_moves_has_all_the_time_that_is_left() -> None:
    """It takes 8 s of the last 10, a piece longer than what stands still may."""
    clock = ManualClock()
    began = clock.monotonic()
    with linked(clock, PIECE / 4) as (connection, link), within(10.0, None, clock):
        connection.request("PUT", "/", body=bytes(2 * PIECE))
        assert connection.getresponse().status == 200
    assert clock.monotonic() - began >= 8.0
    # A stall is found by two looks, and leaves time for another try.
    assert max(wait for wait in link.waits[:-1] if wait is not None) <= 10 / 3


def test_a_body_that_moves_ends_with_the_time() -> None:
    """No byte more than the time is good for."""
    clock, told = ManualClock(), list[int]()
    began = clock.monotonic()
    with linked(clock, PIECE / 4) as (connection, _), within(10.0, told.append, clock):
        with pytest.raises(TimeoutError):
            connection.request("PUT", "/", body=bytes(3 * PIECE))
        assert clock.monotonic() - began < 11.0
    assert told == [PIECE, PIECE]


def test_a_body_does_not_fall_under_the_connect_timeout() -> None:
    """Where nobody said a time: what counts is that something moves."""
    with linked(ManualClock(), 2.0**60) as (connection, link), within(None):
        connection.request("PUT", "/", body=bytes(4 * PIECE))
        assert connection.getresponse().status == 200
        assert set(link.waits) - {None} == {STALL / 2, STALL}  # None is the pool's, before anything is sent
    assert STALL / 2 > CONNECT


def test_a_full_buffer_that_drains_is_no_stall() -> None:
    """The kernel takes nothing more for seconds, while the other side takes what it holds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname(), 20)
        theirs, _ = listener.accept()
    with ours, theirs:
        ours.setblocking(False)
        with suppress(BlockingIOError):  # full
            while ours.send(bytes(PIECE)):
                pass
        queue = http._Queue(ours)
        assert queue.moves()  # nobody knows yet
        settled = [queue.moves() for _ in range(1000)]
        assert settled[-10:] == [False] * 10
        theirs.setblocking(False)
        seen = False
        for _ in range(100_000):
            with suppress(BlockingIOError):
                theirs.recv(PIECE)
            if seen := queue.moves():
                break
        assert seen


def test_the_kernel_takes_little_ahead_of_the_network() -> None:
    """What it holds counts as sent, and cannot be called back: less than a piece, where it would hold several."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = http._Sending(*listener.getsockname())
        connection.connect()
        theirs, _ = listener.accept()
    with theirs, closing(connection):
        assert isinstance(connection.sock, socket.socket)
        connection.sock.setblocking(False)
        with suppress(BlockingIOError):
            while connection.sock.send(bytes(PIECE)):
                pass
        held = fcntl.ioctl(connection.sock.fileno(), termios.TIOCOUTQ, bytes(4))
        assert 0 < int.from_bytes(held, sys.byteorder) < PIECE


def test_a_body_that_nobody_takes_is_given_up() -> None:
    """The server's buffers are full, and stay so."""
    with silent() as server, within(SOON), pytest.raises(GONE):
        put(Transport(), server.url, bytes(LARGE))


def test_an_answer_that_does_not_come_is_given_up() -> None:
    """The time that the body took is not given to the answer once more."""
    with silent() as server, within(SOON), pytest.raises(GONE):
        put(Transport(), server.url, b"small")


def test_an_answer_waits_no_longer_than_what_the_body_left() -> None:
    """The body took nine of ten seconds."""
    clock = ManualClock()
    with linked(clock, PIECE / 4.5) as (connection, link), within(10.0, None, clock):
        connection.request("PUT", "/", body=bytes(2 * PIECE))
        connection.getresponse()
        assert 0.9 < (link.waits[-1] or 0) <= 1.0


def test_a_body_that_stops_in_its_middle_is_given_up() -> None:
    """Its head was right."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nsome"
    with silent(head) as server:
        response = Transport().carry("GET", server.url, {}, None)
        with within(SOON), pytest.raises(GONE):
            fill(response.raw, memoryview(bytearray(1000)))


class _Ticking(ManualClock):
    """A second for each look at it."""

    def monotonic(self) -> float:
        self.advance(1.0)
        return super().monotonic()


def test_an_answer_that_trickles_ends_with_the_time() -> None:
    """Each packet of it comes soon after the last: also where an SDK reads it, and not `fill`."""
    with (
        AnsweringServer(lambda asked: Answer(body=bytes(PIECE))) as server,
        within(50.0, None, _Ticking()),
        pytest.raises(GONE),
    ):
        _ = Transport().carry("GET", server.url, {}, None).content


def test_an_answer_that_is_longer_than_its_time_ends_with_it() -> None:
    """Of what `fill` reads."""
    body = bytearray(LARGE)
    with AnsweringServer(lambda asked: Answer(body=bytes(LARGE))) as server:
        with within(5.0, None, _Ticking()), pytest.raises(GONE):
            fill(Transport().carry("GET", server.url, {}, None).raw, memoryview(body))
        assert fill(Transport().carry("GET", server.url, {}, None).raw, memoryview(body)) == LARGE


def test_no_time_is_no_request() -> None:
    """Nobody is even connected to."""
    with AnsweringServer(echo) as server:
        with within(0.0), pytest.raises(TimeoutError):
            put(Transport(), server.url, b"x")
        assert server.connections == []


def test_a_waiter_may_end_its_request() -> None:
    """No byte more is sent, the connection is closed, and the next request has another one."""
    ended = threading.Event()
    received: list[int] = []

    def serve(connection: socket.socket, number: int) -> None:
        count = 0
        while data := connection.recv(65536):
            count += len(data)
        received.append(count)
        ended.set()

    class Enough(Exception):
        pass

    def enough(count: int) -> None:
        raise Enough

    link = Transport()
    with RawServer(serve) as server:
        with within(None, enough), pytest.raises(Enough):
            put(link, server.url, bytes(LARGE))
        assert ended.wait(100)
    assert PIECE <= received[0] < 2 * PIECE
    with AnsweringServer(echo) as other:
        assert put(link, other.url, b"x") == 200


def test_within_ends_where_it_ends() -> None:
    """What was sent inside is no business of what comes after."""
    clock = ManualClock()
    with within(5.0, None, clock):
        left = remaining(3.0)
        clock.advance(1.0)
        assert left() == 2.0
        with within(1.0, None, clock):
            clock.advance(2.0)
            with pytest.raises(TimeoutError):
                http._now.left()
        assert http._now.left() == 1.0
    assert http._now.left() == STALL
    assert remaining(None)() is None
