"""The peak memory of real processes: each page that they share counts once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from spotguard.doctor.trial.memory import MemoryMeter
from spotguard.prove.processes import Processes
from spotguard.providers.clock import SystemClock
from tests.e2e.processes import eventually

MIB = 2**20
#: A process with 64 MiB that a forked child shares.
SHARING = """
import os, signal
held = bytearray(os.urandom(2**20) * 64)
if os.fork() == 0:
    print("ready", flush=True)
signal.pause()
"""


def test_pages_that_processes_share_count_once(tmp_path: Path) -> None:
    mark, clock = ("SPOTGUARD_TEST_OF_MEMORY", str(tmp_path)), SystemClock()
    processes = Processes(mark, tmp_path / "console.txt", clock)
    processes.start([sys.executable, "-c", SHARING], tmp_path, os.environ | dict([mark]))
    try:
        eventually(lambda: processes.console.read_text(), "forked")
        watch = MemoryMeter(clock)
        watch.look(processes)
    finally:
        processes.end()
    assert (watch.peak.kind, watch.peak.processes) == ("PSS", 2)
    assert 64 * MIB < watch.peak.nbytes < 128 * MIB
