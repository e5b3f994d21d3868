"""The power switch leaves nothing running."""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path

import pytest

from spotguard.demo.machine import DemoMachine
from spotguard.providers.clock import SystemClock
from tests.fakes.awake import STAYS_AWAKE

#: Starts a child in a session of its own that outlives it, which says through a FIFO that it is there, once its parents are gone.
_LEAVES_A_CHILD = """
import os, signal
gone, held = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(held)
        os.read(gone, 1)
        fifo = os.open("{fifo}", os.O_WRONLY)
        os.write(fifo, b"here")
        signal.pause()
os._exit(3)
"""


def test_processes_that_left_the_group_are_killed_too(tmp_path: Path) -> None:
    """A grandchild in another session, whose parents are gone, dies with its machine; so does its disk."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    machine = DemoMachine("machine 1", tmp_path / "machine-1", tmp_path / "console", SystemClock())
    machine.start([sys.executable, "-c", _LEAVES_A_CHILD.format(fifo=fifo)])
    end = os.open(fifo, os.O_RDONLY)
    assert os.read(end, 4) == b"here"

    assert machine.power_off() == 1

    assert select.select([end], [], [], 30)[0], "the writer still lives"
    assert os.read(end, 1) == b""
    os.close(end)
    assert machine.returncode == 3
    machine.discard()
    assert not machine.folder.exists()


#: Says that it is there, and again when it is asked to end; its child, in another session, does the same.
_OBEYS = """
import os, signal
def end(*_):
    os.write(fifo, b"T")
    os._exit(0)
signal.signal(signal.SIGTERM, end)
if os.fork() == 0:
    os.setsid()
{awake}
fifo = os.open("{fifo}", os.O_WRONLY)
os.write(fifo, b"H")
while True: signal.pause()
"""


def test_the_power_button_asks_everything_that_runs_on_it(tmp_path: Path) -> None:
    """One SIGTERM to each, wherever it has gone; nothing is left for the power switch."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    machine = DemoMachine("machine 1", tmp_path / "machine-1", tmp_path / "console", SystemClock())
    machine.start([sys.executable, "-c", _OBEYS.format(fifo=fifo, awake=STAYS_AWAKE)])
    with fifo.open("rb", buffering=0) as end:
        heard = b""
        while heard != b"HH":
            assert select.select([end], [], [], 30)[0], "nobody came"
            heard += end.read(1)
        machine.press_button()
        while heard != b"HHTT":
            assert select.select([end], [], [], 30)[0], heard
            heard += end.read(1)
        assert end.read(1) == b""
    machine.discard()
    assert machine.returncode == 0


def test_nothing_of_ours_reaches_into_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user has set for other runs is not seen on the machine; what was printed outlives its disk."""
    monkeypatch.setenv("SPOTGUARD_STORE", "file:///somewhere/else")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    machine = DemoMachine("machine 1", tmp_path / "machine-1", tmp_path / "console", SystemClock())
    code = (
        f"import os; print('store', os.environ.get('SPOTGUARD_STORE'), flush=True); open({str(fifo)!r}, 'w')"
    )
    machine.start([sys.executable, "-c", code])
    assert fifo.read_bytes() == b""  # it has printed
    machine.discard()
    assert not machine.folder.exists()
    assert machine.last_words() == "store None"
