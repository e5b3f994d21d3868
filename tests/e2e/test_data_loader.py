"""A data loader's workers in a guarded job: they are nobody's business of ours, and end as they always did."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import Machine
from tests.e2e.processes import eventually

pytestmark = [pytest.mark.torch, pytest.mark.wholepath]

LOADING = str(Path(__file__).parent / "programs" / "loading.py")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_has_nothing_of_ours(machine: Machine, method: str) -> None:
    """It holds no socket of the hook and dies of TERM; a notice after that, with the loader dead, still saves the
    last whole step."""
    pytest.importorskip("torch")
    running = machine.run("--every off --window 20", sys.executable, LOADING, method)
    ours = set(running.out.until(r"^sockets (\S.*)$")[1].split())
    worker = int(running.out.until(r"^worker (\d+)$")[1])
    descriptors = Path(f"/proc/{worker}/fd")
    theirs = set()
    for link in descriptors.iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            theirs.add(os.readlink(link))
    assert ours
    assert not ours & theirs
    assert len(machine.status()["sessions"]) == 1

    running.say("go 3")
    running.out.until("^step 3$")
    os.kill(worker, signal.SIGTERM)
    eventually(lambda: not (descriptors / "0").exists(), "the worker ended by TERM")
    running.out.until("^loader died")  # said in between two steps: there the loader's own watch interrupts it
    last = int(running.out.text.split("step ")[-1].split()[0])
    running.send(signal.SIGTERM)
    assert running.ended() == 75
    assert [step for _, step, _ in machine.committed()] == [last]
