"""TLS between us and a store: a connection that breaks is for now, a certificate that nobody trusts is for good."""

from __future__ import annotations

import socket
import ssl
import struct
from contextlib import suppress

import pytest

from spotguard.providers.errors import MisconfiguredError, UnavailableError
from spotguard.providers.stores.errors import network
from spotguard.providers.stores.tls import mistake
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


def test_errors_that_go_round_in_a_circle_are_looked_at_once() -> None:
    """A cause that names its own consequence: Python allows it."""
    one, other = ssl.SSLError(1, "broken"), OSError("again")
    one.__context__, other.__cause__ = other, one
    assert mistake(one) is None
    with pytest.raises(UnavailableError, match="SSLError"), network("get a"):
        raise one
    other.args = (ssl.SSLCertVerificationError(1, "of nobody"),)
    assert mistake(one) is not None
