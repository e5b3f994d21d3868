"""TLS between us and a store: a connection that breaks is for now, a certificate that nobody trusts is for good."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from spotguard.providers.errors import (
    MisconfiguredError,
    StoreError,
    ThrottledError,
    UnavailableError,
    UsageError,
)
from spotguard.providers.stores.errors import network
from spotguard.providers.stores.tls import mistake
from tests.fakes.answering import Answer, AnsweringServer
from tests.fakes.certificate import Certificate
from tests.fakes.raw_server import RawServer
from tests.providers.stores.conftest import Opening

#: SO_LINGER on, for 0 seconds: close() then resets the connection (socket(7)).
RESET = struct.pack("ii", 1, 0)
#: More than any socket's buffers hold.
LARGE = 32 * 2**20


def end(connection: socket.socket, how: str) -> None:
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    elif how == "garbage":
        with socket.socket(fileno=connection.detach()) as plain:
            plain.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))  # a record that nobody encrypted
            while plain.recv(65536):
                pass  # until the client leaves: a close with bytes unread would reset
    connection.close()


def https(server: RawServer) -> str:
    return server.url.replace("http:", "https:")


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_server_that_leaves_instead_of_a_handshake_is_away(
    opening: Opening, certificate: Certificate, how: str
) -> None:
    """As a load balancer does that has nobody behind it."""

    def serve(connection: socket.socket, number: int) -> None:
        connection.recv(65536)  # the client's hello
        end(connection, how)

    with RawServer(serve) as server:
        store = opening(https(server), certificate.ca)
        with pytest.raises(UnavailableError):
            store.put("a", memoryview(b"x"), timeout=100)


@pytest.mark.parametrize("how", ["close", "reset", "garbage"])
def test_a_connection_that_breaks_in_a_body_is_for_now(
    opening: Opening, certificate: Certificate, how: str
) -> None:
    """OpenSSL calls it an error of TLS, whatever broke it."""

    def serve(connection: socket.socket, number: int) -> None:
        with suppress(ssl.SSLError), certificate.server.wrap_socket(connection, server_side=True) as wire:
            count = 0
            while count < 300_000 and (data := wire.recv(65536)):
                count += len(data)
            end(wire, how)

    with RawServer(serve) as server:
        store = opening(https(server), certificate.ca)
        with pytest.raises(UnavailableError):
            store.put("a", memoryview(bytes(LARGE)), timeout=100)


def test_a_certificate_that_nobody_trusts_is_for_good(opening: Opening, certificate: Certificate) -> None:
    """With the way out."""

    def serve(connection: socket.socket, number: int) -> None:
        with suppress(ssl.SSLError), certificate.server.wrap_socket(connection, server_side=True) as wire:
            wire.recv(1)

    with RawServer(serve) as server, pytest.raises(MisconfiguredError, match="ca=FILE"):
        opening(https(server), None).put("a", memoryview(b"x"), timeout=100)


def answer_over_tls(certificate: Certificate, greeting: bytes) -> Callable[[socket.socket, int], None]:
    """A port that speaks TLS, and to plain HTTP says `greeting`: nothing, an alert, a page."""

    def serve(connection: socket.socket, number: int) -> None:
        if connection.recv(1, socket.MSG_PEEK) == b"\x16":
            with suppress(ssl.SSLError), certificate.server.wrap_socket(connection, server_side=True) as wire:
                wire.recv(1)
        elif connection.recv(65536):
            connection.sendall(greeting)

    return serve


GREETINGS = {
    "nothing": b"",
    "an alert": b"\x15\x03\x01\x00\x02\x02\x46",
    "a 400": b"HTTP/1.0 400 Bad Request\r\n\r\nan HTTP request to an HTTPS server",
    "a page": b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>",
}


@pytest.mark.parametrize("greeting", GREETINGS.values(), ids=GREETINGS)
def test_plain_http_to_a_port_of_tls_is_a_setting(
    opening: Opening, certificate: Certificate, greeting: bytes
) -> None:
    with (
        RawServer(answer_over_tls(certificate, greeting)) as server,
        pytest.raises(MisconfiguredError, match=r"speaks TLS: write https:// in place of http://"),
    ):
        opening(server.url, None).put("a", memoryview(b"x"), timeout=100)


@pytest.mark.parametrize("end", ["close", "reset"])
def test_a_plain_port_that_leaves_without_an_answer_is_away(opening: Opening, end: str) -> None:
    """It speaks no TLS either: nothing is known of it."""

    def serve(connection: socket.socket, number: int) -> None:
        connection.recv(65536)
        if end == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    with RawServer(serve) as server, pytest.raises(UnavailableError):
        opening(server.url, None).put("a", memoryview(b"x"), timeout=100)


def test_tls_to_a_plain_port_is_a_setting(opening: Opening, certificate: Certificate) -> None:
    """A server of HTTP explains that it understood nothing, and the client of TLS does not understand that."""

    def serve(connection: socket.socket, number: int) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    with (
        RawServer(serve) as server,
        pytest.raises(MisconfiguredError, match=r"speaks no TLS: write http:// in place of https://"),
    ):
        opening(https(server), certificate.ca).put("a", memoryview(b"x"), timeout=100)


@pytest.mark.parametrize("tls", [True, False])
def test_the_other_protocol_of_a_server_that_has_answered_is_an_outage(
    opening: Opening, certificate: Certificate, tls: bool
) -> None:
    """A proxy or a load balancer is in between for a moment."""
    busy = Answer(503, {"Connection": "close"})
    right, other = (certificate.server, None) if tls else (None, certificate.server)
    with AnsweringServer(lambda asked: busy, right) as server:
        store = opening(server.url, certificate.ca)
        for server.tls, kind in ((right, ThrottledError), (other, UnavailableError), (right, ThrottledError)):
            with pytest.raises(StoreError) as raised:
                store.put("a", memoryview(b"x"), timeout=100)
            assert type(raised.value) is kind


@pytest.mark.parametrize(
    ("address", "days", "advice"), [("127.0.0.2", 1, "for another name"), ("127.0.0.1", -1, "at this time")]
)
def test_a_certificate_that_does_not_fit_is_a_setting(
    opening: Opening, tmp_path: Path, address: str, days: int, advice: str
) -> None:
    """Trusted it is, and of another host, or of last year."""
    other = Certificate.made(tmp_path, address, days)

    def serve(connection: socket.socket, number: int) -> None:
        with suppress(ssl.SSLError), other.server.wrap_socket(connection, server_side=True) as wire:
            wire.recv(1)

    with RawServer(serve) as server, pytest.raises(MisconfiguredError, match=advice):
        opening(https(server), other.ca).put("a", memoryview(b"x"), timeout=100)


@pytest.mark.parametrize("content", [None, "", "no certificate"])
def test_certificates_that_cannot_be_read_are_a_setting(
    opening: Opening, tmp_path: Path, content: str | None
) -> None:
    """A missing file, an empty one, another one: no connection is made."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with RawServer(lambda connection, number: None) as server:
        with pytest.raises((MisconfiguredError, UsageError), match=str(path)):
            opening(https(server), path).put("a", memoryview(b"x"), timeout=100)
        assert server.connections == 0


def test_errors_that_go_round_in_a_circle_are_looked_at_once() -> None:
    """A cause that names its own consequence: Python allows it."""
    one, other = ssl.SSLError(1, "broken"), OSError("again")
    one.__context__, other.__cause__ = other, one
    assert mistake(one) is None
    with pytest.raises(UnavailableError, match="SSLError"), network("get a"):
        raise one
    other.args = (ssl.SSLCertVerificationError(1, "of nobody"),)
    assert mistake(one) is not None
