"""What lies between us and Azure: connections that break, certificates, and what must not be read on the way."""

from __future__ import annotations

import socket
import threading
import traceback

import pytest

pytest.importorskip("azure.storage.blob")

from spotguard.providers.errors import MisconfiguredError, UnavailableError, UsageError
from tests.fakes.certificate import Certificate
from tests.fakes.raw_server import RawServer
from tests.providers.stores.azure.opened import CREATED, Opened, azure

SIGNATURE = "c2lnbmF0dXJl"


CUT_OFF = b"HTTP/1.1 206 Partial Content\r\nx-ms-request-id: 1\r\nContent-Length: 10\r\nContent-Range: bytes 0-9/10\r\n\r\n12345"


@pytest.mark.parametrize("answer", [b"", CUT_OFF], ids=["hang up", "cut off"])
def test_a_connection_that_breaks_is_for_now(opened: Opened, answer: bytes) -> None:
    """And the SDK sends nothing again."""
    asked: list[bytes] = []

    def serve(connection: socket.socket, number: int) -> None:
        if (request := connection.recv(65536)).startswith(
            b"GET "
        ):  # or a hello, to see whether this port speaks TLS
            asked.append(request)
            connection.sendall(answer)

    with RawServer(serve) as server:
        store = opened(server.url)
        with pytest.raises(UnavailableError):
            store.read_into("a", 0, memoryview(bytearray(10)))
        with pytest.raises(UnavailableError):
            store.get("a")
        assert len(asked) == 2


def test_a_stall_ends_with_the_time(opened: Opened) -> None:
    """A server that takes a request and says nothing."""
    over = threading.Event()

    def wait(connection: socket.socket, number: int) -> None:
        over.wait(100)

    with RawServer(wait) as server:
        store = opened(server.url)
        for attempt in (
            lambda: store.put("a", memoryview(bytes(2**20)), timeout=0.2),
            lambda: store.get("a", timeout=0.2),
            lambda: store.list("a", timeout=0.2),
            lambda: store.delete(["a"], timeout=0.2),
        ):
            with pytest.raises(UnavailableError):
                attempt()
        over.set()


def test_a_signature_is_in_no_message(opened: Opened) -> None:
    """Nor in what a debugger's traceback shows: the URL that could not be reached has it."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    store = opened(f"http://127.0.0.1:{port}", "", f"SharedAccessSignature=sv=2026&sig={SIGNATURE}")
    with pytest.raises(UnavailableError) as raised:
        store.put("a", memoryview(b"x"))
    assert SIGNATURE not in "".join(traceback.format_exception(raised.value))
    assert "az://container/prefix/a" in str(raised.value)


def test_a_certificate_of_its_own_is_trusted_by_ca(opened: Opened, certificate: Certificate) -> None:
    """And without it refused for good, with the way out."""
    with azure(lambda asked: CREATED, certificate.server) as server:
        with pytest.raises(MisconfiguredError, match="ca=FILE"):
            opened(server.url).put("a", memoryview(b"x"))
        assert server.asked == []
        opened(server.url, f"?ca={certificate.ca}").put("a", memoryview(b"x"))
        assert len(server.asked) == 1


def test_the_variable_for_certificates_is_not_before_ca(
    opened: Opened, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    import certifi

    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certifi.where())
    with azure(lambda asked: CREATED, certificate.server) as server:
        opened(server.url, f"?ca={certificate.ca}").put("a", memoryview(b"x"))
        assert len(server.asked) == 1


def test_a_password_for_the_host_is_not_used(
    opened: Opened, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """requests would take ~/.netrc's for the signature."""
    netrc = f"{tmp_path}/netrc"
    with open(netrc, "w") as file:
        file.write("machine 127.0.0.1 login somebody password secret\n")
    monkeypatch.setenv("NETRC", netrc)
    with azure(lambda asked: CREATED) as server:
        opened(server.url).put("a", memoryview(b"x"))
        assert server.asked[0].headers["authorization"].startswith("SharedKey ")


def test_a_file_of_certificates_must_be_there(opened: Opened) -> None:
    with pytest.raises(UsageError, match="no file here"):
        opened("http://127.0.0.1:1", "?ca=/none.pem")
