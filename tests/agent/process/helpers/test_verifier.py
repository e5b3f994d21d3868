"""The process that reads a checkpoint again: what it finds in a real store, and that it ends at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotguard.agent.actions import Verify
from spotguard.agent.events import Verified
from spotguard.agent.process.helpers.verifier import Verifier
from spotguard.providers.stores.file import FileStore
from tests.e2e.processes import eventually
from tests.fakes.checkpoint import Save
from tests.fakes.serving import Events
from tests.fakes.talk import TIMEOUT


class Reader:
    """A verifier of a checkpoint in a directory."""

    def __init__(self, folder: Path) -> None:
        self.events = Events()
        self.verifier = Verifier(dict(os.environ), self.events.queue.put)
        self.store = folder / "store"
        Save(step=20, save=1, target=1024).write(FileStore(self.store))

    def start(self, number: int = 1, step: int = 20) -> None:
        self.verifier.start(Verify(number, "run", self.store.as_uri(), step))

    def result(self) -> Verified:
        return self.events.next(Verified)

    @property
    def objects(self) -> list[Path]:
        return sorted(self.store.rglob("*.safetensors"))

    @property
    def child(self) -> int:
        assert self.verifier._process is not None
        return self.verifier._process.pid


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.verifier.close()
    for thread in threading.enumerate():
        if thread.name == "spotguard-verifier":
            thread.join(TIMEOUT)
            assert not thread.is_alive()


def test_a_sound_checkpoint_and_a_damaged_one_are_told_apart(reader: Reader) -> None:
    reader.start()
    first = reader.result()
    assert (first.number, first.status, first.step, first.detail) == (1, "sound", 20, "")
    damaged = reader.objects[0]
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    reader.start(2)
    second = reader.result()
    assert (second.number, second.status) == (2, "damaged")
    assert second.checkpoint == first.checkpoint != ""
    assert damaged.name in second.detail
    assert "CRC32 differs" in second.detail
    assert (first.objects, second.objects[-len(damaged.name) :]) == ("", damaged.name)
    assert damaged.read_bytes() == bytes(data), "nothing is deleted"


def test_a_checkpoint_that_is_not_there_is_not_known(reader: Reader) -> None:
    reader.start(step=21)
    result = reader.result()
    assert result.status == "unknown"
    assert "has no checkpoint of step 21" in result.detail


def test_it_stands_back_for_everybody_and_ends_at_once(reader: Reader, tmp_path: Path) -> None:
    """Also while it hangs in a store, here a pipe that nobody writes to."""
    marker = next(reader.store.rglob("*.json"))
    marker.unlink()
    os.mkfifo(marker)
    for path in reader.store.rglob("*.json"):
        if path != marker:
            path.unlink()
            os.mkfifo(path)
    reader.start()
    child = reader.child
    eventually(lambda: os.sched_getscheduler(child) == os.SCHED_IDLE, "of low priority")
    assert os.getpriority(os.PRIO_PROCESS, child) == 19
    eventually(lambda: Path(f"/proc/{child}/oom_score_adj").read_text() == "1000\n", "killed first")
    reader.verifier.pause(True)
    eventually(lambda: _state(child) == "T", "paused")
    reader.verifier.pause(False)
    eventually(lambda: _state(child) != "T", "goes on")
    reader.verifier.pause(True)
    reader.verifier.stop()
    eventually(lambda: not Path(f"/proc/{child}").exists(), "ended")
    reader.verifier.close()
    assert reader.events.queue.empty(), "what was stopped has no result"


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
