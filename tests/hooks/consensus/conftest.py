"""c10d asks for the name of every host it connects to; where nobody answers such questions, not for long."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.hooks.consensus.hosts import Host, Hosts

os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")


@pytest.fixture(scope="session")
def hosts() -> Iterator[Hosts]:
    made = Hosts()
    yield made
    made.close()


@pytest.fixture
def host(hosts: Hosts) -> Iterator[Host]:
    """A process that hosts a store."""
    made = Host(hosts)
    yield made
    made.dies()
