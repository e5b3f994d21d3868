"""What the agent's tests share: a short folder for sockets, the events of a server, the server, a relay of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.sources.relayed import Relayed
from tests.fakes.serving import Events, Serving


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a Unix socket's holds 107 bytes, and pytest's own is longer."""
    path = Path(os.environ["XDG_RUNTIME_DIR"], f"t{os.urandom(4).hex()}")
    path.mkdir(mode=0o700)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def serve(folder: Path, events: Events) -> Iterator[Serving]:
    serving = Serving(folder, events)
    yield serving
    serving.close()


@pytest.fixture
def relayed(folder: Path) -> Iterator[Relayed]:
    relayed = Relayed(folder / "a.sock")
    yield relayed
    relayed.relay.stop(timeout=100)
