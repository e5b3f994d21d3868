"""At the notice only bytes move (law 8): what a save needs is there before, and nothing is fetched, opened or loaded after."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("azure.identity")

from tests.e2e.harness import Machine
from tests.e2e.identities import CLOUDS, Identity
from tests.fixtures_servers import TlsBefore

pytestmark = [pytest.mark.wholepath, pytest.mark.torch]

PROGRAM = Path(__file__).parent / "programs" / "counted.py"

#: Pages that a thread of the save may touch for the first time, whatever the state's size. Python allocates some for each
#: request (15 seen), and google_crc32c wants pieces of 256 KiB copied (70 seen); an object's frame is 8,192 of them.
PAGES = 160


@pytest.fixture(params=CLOUDS)
def identity(
    request: pytest.FixtureRequest, tls_before: TlsBefore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Identity]:
    with CLOUDS[request.param](request, tls_before, monkeypatch, tmp_path) as made:
        yield made


def test_only_bytes_move_after_a_notice(identity: Identity, tmp_path: Path) -> None:
    """From the notice to the outcome nothing is imported or opened, nobody is looked up, connected to, shaken hands with or
    asked for credentials, and no thread is started. The service that gave the credentials is gone by then, and they would
    end in minutes: the save succeeds. It is the first one of its process."""
    machine = Machine(tmp_path)
    try:
        options = f"--store {identity.url} --every off --window 60"
        running = machine.run(options, sys.executable, str(PROGRAM))
        running.out.until("^ready$")
        accepted, asked = identity.front.accepted(), identity.asked()
        assert asked >= 1
        identity.go()
        running.send(signal.SIGTERM)
        said = json.loads(running.out.until(r"^\{.*")[0])
        assert running.ended() == 75
        assert machine.outcome()["step"] == 6
        assert said["found"] == {name: [] for name in said["found"]}
        assert {"imports", "look-ups", "connections", "handshakes", "threads", "files"} <= set(said["before"])
        assert said["faults"] < PAGES * said["savers"] < said["pages"] / 4
        assert identity.front.accepted() == accepted
        assert identity.asked() == asked
    finally:
        machine.close()
