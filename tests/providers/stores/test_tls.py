"""TLS between us and a store: a connection that breaks is for now, a certificate that nobody trusts is for good."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from spotguard.providers.errors import DeniedError, UnavailableError
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.errors import network, untrusted
from spotguard.providers.stores.factory import open_store
from tests.fakes.certificate import Certificate
from tests.fakes.raw_server import RawServer
from tests.providers.stores.azure.opened import Opened

#: SO_LINGER on, for 0 seconds: close() then resets the connection (socket(7)).
RESET = struct.pack("ii", 1, 0)
#: More than any socket's buffers hold.
LARGE = 32 * 2**20

#: Opens a store at an address, `ca` trusted or not.
Opening = Callable[[str, Path | None], BlobStore]


@pytest.fixture(params=["s3", "gcs", "azure"])
def opening(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Opening]:
    for each in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(each, raising=False)
    if request.param == "s3":
        request.getfixturevalue("somebody_to_aws")
        yield lambda url, ca: open_store(f"s3://bucket/prefix?endpoint={url}{f'&ca={ca}' if ca else ''}")
    elif request.param == "gcs":
        pytest.importorskip("google.cloud.storage")
        # An emulator is sent no credentials.
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
        yield lambda url, ca: open_store(f"gs://bucket/prefix?endpoint={url}{f'&ca={ca}' if ca else ''}")
    else:
        pytest.importorskip("azure.storage.blob")
        opened: Opened = request.getfixturevalue("opened")
        yield lambda url, ca: opened(url, f"?ca={ca}" if ca else "")


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

    with RawServer(serve) as server, pytest.raises(DeniedError, match="ca=FILE"):
        opening(https(server), None).put("a", memoryview(b"x"), timeout=100)


def test_errors_that_go_round_in_a_circle_are_looked_at_once() -> None:
    """A cause that names its own consequence: Python allows it."""
    one, other = ssl.SSLError(1, "broken"), OSError("again")
    one.__context__, other.__cause__ = other, one
    assert not untrusted(one)
    with pytest.raises(UnavailableError, match="SSLError"), network("get a"):
        raise one
    other.args = (ssl.SSLCertVerificationError(1, "of nobody"),)
    assert untrusted(one)
