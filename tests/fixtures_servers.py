"""Fixtures for every room's tests: real stores on loopback.

Each server starts when the first test of a process asks for it, and serves all its later tests; a test tells its own
things apart by a bucket of its own, `fresh()`. The environment of the test, and of what it starts, names the server
as an SDK expects it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.servers.moto import Moto

RequireServer = Callable[[str], str]


@pytest.fixture(scope="session")
def moto_server(require_server: RequireServer) -> Iterator[Moto]:
    """S3 by moto, for one process of the suite."""
    with Moto(require_server("moto_server")) as server:
        yield server


@pytest.fixture
def moto(moto_server: Moto, monkeypatch: pytest.MonkeyPatch) -> Moto:
    """S3 with atomic conditional creates and recorded checksums; it refuses no wrong checksum."""
    for name, value in moto_server.environ.items():
        monkeypatch.setenv(name, value)
    return moto_server
