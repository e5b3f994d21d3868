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
FEEDING = str(Path(__file__).parent / "programs" / "feeding.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]


def sockets_of(pid: int) -> set[str]:
    """The sockets among its descriptors."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            found.add(os.readlink(link))
    return {each for each in found if each.startswith("socket:")}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.soak)])
def test_a_worker_has_nothing_of_ours(machine: Machine, method: str) -> None:
    """It holds no socket of the hook and dies of TERM; a notice after that, with the loader dead, still saves the
    last whole step."""
    pytest.importorskip("torch")
    running = machine.run("--every off --window 20", sys.executable, LOADING, method)
    ours = set(running.out.until(r"^sockets (\S.*)$")[1].split())
    worker = int(running.out.until(r"^worker (\d+)$")[1])
    assert ours
    assert not ours & sockets_of(worker)
    assert len(machine.status()["sessions"]) == 1

    running.say("go 3")
    running.out.until("^step 3$")
    os.kill(worker, signal.SIGTERM)
    running.out.until("^loader died")  # said in between two steps: there the loader's own watch interrupts it
    last = int(running.out.text.split("step ")[-1].split()[0])
    running.send(signal.SIGTERM)
    assert running.ended() == 75
    assert [step for _, step, _ in machine.committed()] == [last]


@pytest.mark.soak
@pytest.mark.parametrize("life", range(100), ids="life-{}".format)
def test_a_worker_that_is_forked_right_behind_restore_begins(machine: Machine, life: int) -> None:
    """Our threads have just begun, and a fork takes the locks of libc and torch as they stand. (Best with several beside each
    other: one in 65 hung, before the first calls of torch were taken from those threads.)"""
    pytest.importorskip("torch")
    machine.run("--every off --window 20", sys.executable, LOADING, "fork").out.until(r"^worker (\d+)$")


@pytest.mark.slow
def test_workers_of_two_ranks_below_torchrun_end_with_them(machine: Machine) -> None:
    """Forked and spawned, and all of them in the middle of a sample when the notice comes: the save commits, and nobody is
    left, not even a zombie."""
    pytest.importorskip("torch")
    limit = machine.folder / "limit"
    limit.write_text("3")
    running = machine.run("--every off --window 20", *TORCHRUN, FEEDING, str(limit))
    ours, workers, at = set[str](), set[int](), dict[str, int]()
    while len(workers) < 4 or set(at.values()) != {3}:
        said = running.out.until(r"^rank (\d) (?:sockets (.+)|worker (\d+) (\d+)|step (\d))$")
        if said[2]:
            ours |= set(said[2].split())
        elif said[3]:
            workers.add(int(said[3]))
            assert said[4] == "0"
        else:
            at[said[1]] = int(said[5])
    for worker in workers:
        assert Path(f"/proc/{worker}").exists()
    assert len(machine.status()["sessions"]) == 2

    running.send(signal.SIGTERM)
    assert running.ended() == 75
    outcome = machine.outcome()
    assert (outcome["step"], outcome["why"]) == (3, "")
    # Not at once: whose parent is gone is buried by the system's first process, in its own time.
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), f"the end of {workers}")
    assert not list(machine._mine())


@pytest.mark.soak  # of a launcher that ends its workers `test_launchers` has the fast one
def test_a_launcher_that_ends_whole_sessions_loses_nothing(machine: Machine) -> None:
    """Torchrun's SIGTERM reaches a loader's workers too, as where another machine joins: training fails for want of data, before
    anybody can know that this is no notice. All ranks save before they are gone."""
    pytest.importorskip("torch")
    limit = machine.folder / "limit"
    limit.write_text("3")
    running = machine.run("--every off", *TORCHRUN, FEEDING, str(limit))
    for _ in range(2):
        running.out.until(r"^rank \d step 3$")
    starts = "\0".join(TORCHRUN).encode()
    (launcher,) = [p for p in machine._mine() if Path(f"/proc/{p}/cmdline").read_bytes().startswith(starts)]
    os.kill(launcher, signal.SIGTERM)
    assert running.ended() != 0
    (marker,) = machine.store.glob("job/checkpoints/*/COMMIT.json")
    assert marker.parent.name.startswith("000000003-0001-")
