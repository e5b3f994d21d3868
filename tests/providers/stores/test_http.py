"""The HTTP under the SDKs: connections that stay, proxies that are named, certificates that are trusted."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import requests

from spotguard.providers.errors import UnavailableError
from spotguard.providers.stores.base import StoreMovement
from spotguard.providers.stores.errors import contained
from spotguard.providers.stores.http import PIECE, Transport, fill, within
from tests.cases import cases
from tests.fakes.answering import Answer, AnsweringServer
from tests.fakes.certificate import Certificate
from tests.fakes.raw_server import RawServer
from tests.providers.stores.carrying import echo, get, put


def test_a_thread_has_one_connection_and_keeps_it() -> None:
    """Three threads, thirty requests, three connections."""
    with AnsweringServer(echo) as server:
        link, met = Transport(), threading.Barrier(3)

        def work(mine: int) -> None:
            for number in range(5):
                assert put(link, f"{server.url}/{mine}/{number}", b"x" * number) == 200
                assert get(link, server.url) == b""
                met.wait(100)

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(work, range(3)))
        assert len(server.asked) == 30
        assert len(server.connections) == 3


def test_a_connection_that_was_closed_while_idle_is_replaced() -> None:
    """Servers close what lies idle: no error, a new connection."""
    with AnsweringServer(echo) as server:
        link = Transport()
        assert get(link, server.url) == b""
        server.connections[0].shutdown(socket.SHUT_RDWR)
        assert get(link, server.url) == b""
        assert len(server.connections) == 2


def test_an_empty_answer_gives_its_connection_back() -> None:
    """Filling nothing is reading to the end."""
    with AnsweringServer(lambda asked: Answer()) as server:
        link = Transport()
        for _ in range(3):
            assert fill(link.carry("GET", server.url, {}, None).raw, memoryview(b"")) == 0
        assert len(server.connections) == 1


def test_a_long_answer_moves_while_it_comes() -> None:
    """A restore counts it, and is no stall then."""
    body = b"x" * (2 * PIECE)
    with AnsweringServer(lambda asked: Answer(body=body)) as server:
        buffer, moved = bytearray(len(body)), StoreMovement.count
        assert fill(Transport().carry("GET", server.url, {}, None).raw, memoryview(buffer)) == len(body)
        assert StoreMovement.count > moved + 1


def test_a_redirect_is_not_followed() -> None:
    """It is signed for one host; whoever points elsewhere is not obeyed."""
    with (
        AnsweringServer(echo) as other,
        AnsweringServer(lambda asked: Answer(307, {"Location": other.url})) as server,
    ):
        assert put(Transport(), server.url, b"x") == 307
        assert other.asked == []


def test_proxies_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP_PROXY sees the whole URL; NO_PROXY has it not asked."""
    with AnsweringServer(echo) as proxy, AnsweringServer(echo) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        get(Transport(), f"{server.url}/through")
        assert [asked.path for asked in proxy.asked] == ["/through"]
        assert proxy.asked[0].headers["host"] == server.url.removeprefix("http://")
        assert server.asked == []
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        get(Transport(), f"{server.url}/straight")
        assert [asked.path for asked in server.asked] == ["/straight"]
        assert len(proxy.asked) == 1


def pipe(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):  # either side may leave
        while data := source.recv(65536):
            sink.sendall(data)


def test_tls_goes_through_a_proxy(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    """By CONNECT: the proxy sees a name and a port, and bytes that it cannot read."""
    asked: list[bytes] = []

    def serve(connection: socket.socket, number: int) -> None:
        asked.append(connection.recv(65536))
        host, _, port = asked[-1].split()[1].decode().partition(":")
        with socket.create_connection((host, int(port)), 20) as onward:
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=pipe, args=(onward, connection), name="back")
            back.start()
            pipe(connection, onward)
            onward.shutdown(socket.SHUT_RDWR)
            back.join(100)

    with AnsweringServer(echo, certificate.server) as server, RawServer(serve) as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        link, told = Transport(str(certificate.ca)), list[int]()
        with within(20.0, told.append):
            assert put(link, f"{server.url}/secret", bytes(2 * PIECE)) == 200
        assert server.asked[0].path == "/secret"
        assert told == [PIECE, PIECE]
        assert asked[0].startswith(b"CONNECT 127.0.0.1:")
        link.close()


@pytest.mark.parametrize("variable", ["", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_a_certificate_is_trusted_where_it_is_named(
    variable: str, certificate: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the store's own option, which beats the environment, or by the environment; else never."""
    for each in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # the machine's own
        monkeypatch.delenv(each, raising=False)
    with AnsweringServer(echo, certificate.server) as server:
        with pytest.raises(requests.exceptions.SSLError):
            get(Transport(), server.url)
        if variable:
            monkeypatch.setenv(variable, str(certificate.ca))
            assert get(Transport(), server.url) == b""
        else:
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "none.pem"))
            assert get(Transport(str(certificate.ca)), server.url) == b""
        assert len(server.asked) == 1


@cases("error", [TimeoutError("a caller's"), UnavailableError("a caller's"), KeyError("a caller's")])
def test_an_exception_of_sent_leaves_unchanged(error: Exception) -> None:
    """Whatever an SDK makes of it on its way; a failure in the next request is that request's own."""

    def enough(count: int) -> None:
        raise error

    def sdk(link: Transport, url: str) -> None:
        try:
            put(link, url, bytes(2 * PIECE))
        except Exception as inner:
            raise RuntimeError("an SDK's") from inner

    with AnsweringServer(echo) as server:
        link = Transport()
        with pytest.raises(type(error)) as raised, within(100.0, enough):
            sdk(link, server.url)
        assert raised.value is error
        with pytest.raises(RuntimeError), within(100.0):
            raise RuntimeError("an SDK's")
        assert all(len(asked.body) < 2 * PIECE for asked in server.asked), "cut off"


def test_an_exception_of_sent_is_no_mistake_of_settings() -> None:
    """A store that is asked for the first time, and a caller whose error looks like a broken connection."""

    def enough(count: int) -> None:
        raise ConnectionResetError

    with AnsweringServer(echo) as server:
        with pytest.raises(ConnectionResetError), within(100.0, enough):
            put(Transport(), server.url, bytes(2 * PIECE))
        assert len(server.connections) == 1


def test_memory_that_ends_is_no_answer_of_a_server() -> None:
    """SDKs wrap the error, and another try of the request would hide that the save has no memory."""
    wrapped = UnavailableError("put a: it was wrapped")
    wrapped.__cause__ = MemoryError("no more")
    with pytest.raises(MemoryError, match="no more"), contained("put a"):
        raise wrapped
    with pytest.raises(MemoryError), contained("put a"):
        raise MemoryError
    with pytest.raises(UnavailableError, match="SG316"), contained("put a"):
        raise RecursionError("an answer that is nested on purpose")
