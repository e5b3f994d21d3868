"""Fixtures for every room's tests: real stores on loopback, and a folder that costs no fsync.

Each server starts when the first test of a process asks for it, and serves all its later tests; a test tells its own
things apart by a bucket of its own, `fresh()`. The environment of the test, and of what it starts, names the server
as an SDK expects it.
"""

from __future__ import annotations

import functools
import os
import shutil
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from tests.servers.azurite import Azurite
from tests.servers.faults import FaultProxy
from tests.servers.gcs import Gcs
from tests.servers.moto import Moto
from tests.servers.nginx import Nginx
from tests.servers.program import Server
from tests.servers.swift import Swift

RequireServer = Callable[[str], str]
TlsBefore = Callable[[Server], Nginx]
S = TypeVar("S", bound=Server)


def _named(server: S, monkeypatch: pytest.MonkeyPatch) -> S:
    for name, value in server.environ.items():
        monkeypatch.setenv(name, value)
    return server


#: In memory: each of some hundred small runs flushes a dozen files, and on a disk that is most of the time.
MEMORY = Path("/dev/shm")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty folder for a store, in memory where that can be had."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="sg-", dir=MEMORY))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session", autouse=True)
def _one_reading_of_the_api() -> Iterator[None]:
    """botocore reads its description of S3 for each session anew, an eighth of a second: once for a process of the suite.

    Its sessions make any number of clients of one reading, so those of the suite may share it too.
    """
    try:
        import botocore.session as botocore
    except ImportError:  # a Python without the extra `s3`
        yield
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(botocore, "create_loader", functools.cache(botocore.create_loader))
        yield


def _running(make: Callable[..., Server], *programs: str) -> Any:
    """A server for one process of the suite."""

    @pytest.fixture(scope="session")
    def server(require_server: RequireServer) -> Iterator[Server]:
        with make(*map(require_server, programs)) as running:
            yield running

    return server


azurite_server = _running(Azurite, "azurite-blob")
gcs_server = _running(Gcs, "gcp-storage-emulator")
swift_server = _running(Swift, "swift-proxy-server", "memcached")


@pytest.fixture(scope="session")
def moto_server(require_program: RequireServer) -> Iterator[Moto]:
    with Moto(require_program("moto_server")) as running:
        yield running


@pytest.fixture
def moto(moto_server: Moto, monkeypatch: pytest.MonkeyPatch) -> Moto:
    """S3 with atomic conditional creates and recorded checksums; it refuses no wrong checksum."""
    return _named(moto_server, monkeypatch)


@pytest.fixture
def azurite(azurite_server: Azurite, monkeypatch: pytest.MonkeyPatch) -> Azurite:
    """Azure Blob Storage that checks keys, MD5s and conditions."""
    return _named(azurite_server, monkeypatch)


@pytest.fixture
def gcs(gcs_server: Gcs, monkeypatch: pytest.MonkeyPatch) -> Gcs:
    """Cloud Storage that keeps preconditions, checksums, ranges and pages."""
    return _named(gcs_server, monkeypatch)


@pytest.fixture
def swift(swift_server: Swift, monkeypatch: pytest.MonkeyPatch) -> Swift:
    """S3 that refuses wrong checksums and keys. Seconds to start, once: ask where that matters."""
    return _named(swift_server, monkeypatch)


@pytest.fixture
def nginx(require_server: RequireServer) -> Iterator[Nginx]:
    """A place for files by PUT, GET and DELETE, with and without TLS: nothing is faster."""
    with Nginx(require_server("nginx"), require_server("openssl")) as server:
        yield server


@pytest.fixture
def tls_before(require_server: RequireServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[TlsBefore]:
    """`tls_before(moto)` puts TLS before a store: the environment names the front now, and the authority to believe."""
    with ExitStack() as running:

        def before(store: Server) -> Nginx:
            front = Nginx(require_server("nginx"), require_server("openssl"), store.endpoint)
            running.enter_context(front)
            for name, value in (store.environ_at(front.endpoint) | front.certificates.environ).items():
                monkeypatch.setenv(name, value)
            return front

        yield before


class FaultsBefore(Protocol):
    """Puts a `FaultProxy` before a store, with that seed; it is gone when the test ends."""

    def __call__(self, store: Server, seed: int = 0, tls: ssl.SSLContext | None = None) -> FaultProxy: ...


@pytest.fixture
def faults_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultsBefore]:
    """`faults_before(moto)` stands between the store and whoever finds it by the environment."""
    with ExitStack() as running:

        def before(store: Server, seed: int = 0, tls: ssl.SSLContext | None = None) -> FaultProxy:
            proxy = running.enter_context(FaultProxy(store.endpoint, seed, tls))
            for name, value in store.environ_at(proxy.url).items():
                monkeypatch.setenv(name, value)
            return proxy

        yield before
