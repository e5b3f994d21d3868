"""What stands between `run` and the ranks: ended after the commit, started again after a call, and nothing left behind."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import Machine
from tests.e2e.processes import Running, eventually
from tests.e2e.speaker import PROGRAM, SPEAKING, saw

pytestmark = [pytest.mark.wholepath]

SHARDED = str(Path(__file__).parent / "programs" / "sharded.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1"]
MEETING = ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]


class Ranks:
    """Two of them on one machine, below some launcher, below `spotguard run`."""

    def __init__(self, machine: Machine, *command: str) -> None:
        self.machine = machine
        for rank in range(2):
            os.mkfifo(machine.folder / f"rank-{rank}")
        self.path = str(Path(__file__).parents[2] / "packaging")
        self.run: Running = machine.run("--window 60", *command, PYTHONPATH=self.path)

    def ready(self) -> int:
        """Both have registered. The pid of what started them."""
        parents: set[int] = set()
        for _ in range(2):
            said = saw(self.run, "ready")
            parents.add(said["parent"])
            assert (said["restart"], said["refused"]) == (0, "")
        (parent,) = parents
        return parent

    def told(self, kind: str) -> None:
        assert [saw(self.run, "preempt")["kind"] for _ in range(2)] == [kind, kind]

    def order(self, rank: int, words: str) -> None:
        (self.machine.folder / f"rank-{rank}").write_text(words + "\n")

    def commit(self, rank: int) -> None:
        self.order(rank, "commit 1200")
        self.run.err.until(f"rank {rank} .*committed step 1200")

    def nobody_is_left(self) -> None:
        eventually(lambda: not list(self.machine._mine()), "processes were left behind")


@pytest.mark.torch
def test_torchrun_is_ended_after_the_commit_and_started_again_after_a_call(machine: Machine) -> None:
    """A call: its workers save on while torchrun, which has lost its rendezvous, waits for them; then all of it is
    started anew. A notice of its own: no signal before the last commit, no worker started again, nobody left."""
    pytest.importorskip("torch")
    ranks = Ranks(machine, *TORCHRUN, *MEETING, PROGRAM)
    launcher = ranks.ready()
    shown = [(each["rank"], each["world"]) for each in machine.status()["sessions"]]
    assert sorted(shown) == [(0, 2), (1, 2)]
    ranks.order(1, "call 127.0.0.1 localhost")
    ranks.told("peer")
    ranks.commit(0)
    os.kill(launcher, signal.SIGTERM)  # as it would itself
    assert {saw(ranks.run, "SIGTERM")["state"] for _ in range(2)} <= {"saving", "leaving"}
    assert machine.status()["phase"] == "saving"
    ranks.commit(1)
    ranks.run.err.until("starting the command again: another machine of the job was noticed")
    outcome = machine.outcome()
    assert (outcome["kind"], outcome["step"], outcome["code"]) == ("peer", 1200, None)
    ranks.run.err.until("the rendezvous was on the machine that goes: it is on localhost from now on")
    again = ranks.ready()
    assert again != launcher
    assert "--rdzv-endpoint=localhost:0" in Path(f"/proc/{again}/cmdline").read_text().split("\0")

    ranks.run.send(signal.SIGTERM)
    ranks.told("signal")
    ranks.commit(1)
    assert '"saw": "SIGTERM"' not in ranks.run.out.text.rpartition("ready")[2]
    ranks.commit(0)
    assert ranks.run.ended() == 75
    outcome = machine.outcome()
    assert (outcome["ended"], outcome["step"], outcome["code"]) == ("TERM after the commit", 1200, 75)
    assert '"restart": 1' not in ranks.run.out.to_the_end()
    ranks.nobody_is_left()


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("launcher_too", [False, True])
def test_the_next_run_ends_the_launcher_or_the_workers_that_a_killed_one_left(
    machine: Machine, launcher_too: bool
) -> None:
    """Every rank comes back and commits before the first is ended; then the same is started anew, and refuses nobody."""
    pytest.importorskip("torch")
    ranks = Ranks(machine, *TORCHRUN, *MEETING, PROGRAM)
    launcher = ranks.ready()
    first = ranks.run
    workers = {each["pid"] for each in machine.status()["sessions"]}
    first.kill()
    assert first.ended() == -signal.SIGKILL
    if launcher_too:
        machine.kill(launcher)
    ranks.run = machine.run("--window 60", *TORCHRUN, *MEETING, PROGRAM, PYTHONPATH=ranks.path)
    who = "processes are" if launcher_too else f"pid {launcher} is"
    ranks.run.err.until(f"{who} left of a spotguard run that was killed")
    assert [saw(first, "preempt")["kind"] for _ in range(2)] == ["orphan", "orphan"]
    assert workers <= set(machine._mine())
    ranks.commit(0)
    assert workers <= set(machine._mine())
    ranks.commit(1)
    ranks.run.err.until(
        "starting the command again: no training of the spotguard run that was killed is left"
    )
    assert workers.isdisjoint(machine._mine())
    assert ranks.ready() != launcher
    ranks.run.send(signal.SIGTERM)
    ranks.told("signal")
    ranks.commit(0)
    ranks.commit(1)
    assert ranks.run.ended() == 75
    ranks.nobody_is_left()


@pytest.mark.slow
@pytest.mark.torch
def test_a_launcher_that_ends_its_workers_loses_nothing(machine: Machine) -> None:
    """As torchrun does where another machine joins: no notice explains the SIGTERM, so all ranks save, and then end by it."""
    pytest.importorskip("torch")
    limit = machine.folder / "limit"
    limit.write_text("3")
    run = machine.run("--every off", *TORCHRUN, *MEETING, SHARDED, "100", str(limit))
    run.out.until("^step 3 ")
    starts = "\0".join(TORCHRUN).encode()
    launchers = [p for p in machine._mine() if Path(f"/proc/{p}/cmdline").read_bytes().startswith(starts)]
    os.kill(launchers[0], signal.SIGTERM)
    assert run.ended() != 0
    (marker,) = machine.store.glob("job/checkpoints/*/COMMIT.json")
    assert marker.parent.name.startswith("000000003-0001-")
    outcome = machine.outcome()
    assert (outcome["kind"], outcome["step"], outcome["level"], outcome["code"]) == (
        "launcher",
        3,
        "full",
        None,
    )
    assert [each["rank"] for each in outcome["sessions"]] == [0, 1]
    machine.power_off()


def test_a_parent_that_spawned_its_ranks_is_ended_with_them(machine: Machine) -> None:
    """`mp.spawn`: nobody is told to leave before the others, and the parent, which knows nothing, gets TERM with them."""
    ranks = Ranks(machine, *SPEAKING, "spawn")
    ranks.ready()
    ranks.run.send(signal.SIGTERM)
    ranks.told("signal")
    ranks.commit(0)
    assert machine.status()["phase"] == "saving"
    ranks.commit(1)
    assert ranks.run.ended() == 75
    said = ranks.run.out.to_the_end()
    assert '"leave"' not in said
    assert machine.outcome()["ended"] == "TERM after the commit"
    ranks.nobody_is_left()


def test_one_process_for_each_machine_leaves_and_is_started_again(machine: Machine) -> None:
    """Started by hand: `run` is its launcher."""
    ranks = Ranks(machine, *SPEAKING)
    saw(ranks.run, "ready")
    ranks.order(0, "call node1 node2")
    assert saw(ranks.run, "preempt")["kind"] == "peer"
    ranks.order(0, "commit 3")
    saw(ranks.run, "leave")
    saw(ranks.run, "ready")
    ranks.order(0, "end")
    assert ranks.run.ended() == 0
    ranks.nobody_is_left()
