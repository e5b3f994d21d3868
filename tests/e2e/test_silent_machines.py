"""A machine of a job falls silent: the others save at once, name it, and go on if the network heals."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotguard.hooks.checkpoint.catalog import whole_checkpoints
from spotguard.hooks.checkpoint.format.manifest import LEVELS
from spotguard.providers.stores.factory import open_store
from tests.e2e.machines import Rack, address
from tests.e2e.processes import Running, eventually

pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.slow]

ERRING = str(Path(__file__).parent / "programs" / "erring.py")


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    with Rack(tmp_path) as made:
        yield made


def trains(rack: Rack) -> list[Running]:
    """A job of two machines, which trains on and on; each knows where the other one's agent is."""
    nodes = [rack.add(), rack.add()]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={address(1)}:29400", "--rdzv-id=job"]
    runs = [
        node.guarded("--every off", *launcher, *meeting, ERRING, "100000", "paced", "20") for node in nodes
    ]
    for run in runs:
        run.out.until(r"^rank [01] at step 20$")
    return runs


def test_the_job_of_a_machine_that_falls_silent_is_saved_and_the_machine_is_named(rack: Rack) -> None:
    first, second = trains(rack)
    rack.nodes[1].take()
    first.err.until("machine node2 of run job is silent: no heartbeat for 3 s")
    first.err.until("training stands still: machine node2 is silent; rank 0")
    saved = first.err.until(r"rank 0 \(pid \d+\): committed step (\d+)")
    assert (rack.store / "job" / "checkpoints").is_dir()
    markers = [*(rack.store / "job" / "checkpoints").glob("*/COMMIT.json")]
    assert [int(marker.parent.name[:9]) for marker in markers] == [int(saved[1])]
    assert int(saved[1]) >= 20
    assert first.running
    assert not second.running


def complete(rack: Rack) -> list[tuple[int, tuple[int, ...]]]:
    """The steps of all complete checkpoints, and the ranks that each lacks."""
    found = whole_checkpoints(open_store(rack.store.as_uri()), "job", levels=LEVELS)
    return sorted((each.name.step, each.missing) for each in found)


def test_the_job_whose_first_machine_falls_silent_is_saved_by_the_other(rack: Rack) -> None:
    """It served the job's store, and the rendezvous."""
    first, second = trains(rack)
    rack.nodes[0].take()
    second.err.until("training stands still: machine node1 is silent; rank 1")
    saved = second.err.until(r"rank 1 \(pid \d+\): committed step (\d+)")
    assert complete(rack) == [(int(saved[1]), (0,))]
    assert second.running
    assert not first.running


def test_one_side_of_a_cut_network_saves_a_step(rack: Rack) -> None:
    """Each holds all of the state, takes the other for dead, and reaches the store of blobs."""
    runs = trains(rack)
    rack.nodes[0].cut()
    ends = [
        run.err.until(r"(COMMITTED .* as partial-extras|may live: ranks there save step \d+)")[1]
        for run in runs
    ]
    steps = complete(rack)
    assert (
        len({step for step, _ in steps}) == len(steps) == sum(end.startswith("COMMITTED") for end in ends) > 0
    )
    assert all(missing in ((0,), (1,)) for _, missing in steps)


def test_a_short_cut_of_the_network_is_told_and_nothing_is_saved(rack: Rack) -> None:
    runs = trains(rack)
    rack.nodes[1].cut()
    for run, other in zip(runs, ("node2", "node1"), strict=True):
        run.err.until(f"machine {other} of run job is silent")
    rack.nodes[1].plug()
    for run, other in zip(runs, ("node2", "node1"), strict=True):
        run.err.until(f"machine {other} of run job answers again")
        run.out.until("^rank [01] goes on$")
        assert "training stands still" not in run.err.text
    assert not [*(rack.store / "job").glob("checkpoints/*/COMMIT.json")]


def test_training_goes_on_where_the_network_heals_during_the_save(rack: Rack) -> None:
    """The save is committed by all, or broken off because training moves again: nobody waits for it, and nobody fails."""
    runs = trains(rack)
    rack.nodes[1].cut()
    runs[0].err.until(r"rank 0 \(pid \d+\): begun")
    # Each machine counts from the last heartbeat that it has heard itself: one that is plugged in before has nothing to tell.
    runs[1].err.until("machine node1 of run job is silent")
    rack.nodes[1].plug()
    for run in runs:
        run.err.until("answers again")
        run.out.until("^rank [01] goes on$")
    assert len([*(rack.store / "job").glob("checkpoints/*/COMMIT.json")]) <= 1
    assert all(run.running for run in runs)


def test_a_simulated_failure_of_a_job_happens_on_the_machine_of_its_rank(rack: Rack) -> None:
    """The command on each machine is the same."""
    nodes = [rack.add(), rack.add()]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={address(1)}:29400", "--rdzv-id=job"]
    run = [sys.executable, "-m", "spotguard", "run", "--run-id", "job", "--store", nodes[0].url]
    plan = ["simulate", "failure", "stopped", "--rank", "1", "--at-step", "20", "--for", "3", "--"]
    job = [*launcher, *meeting, ERRING, "60", "paced", "20"]
    runs = [node.spotguard(*plan, *run, "--every", "off", "--", *job) for node in nodes]
    for each in runs:
        assert each.ended() == 0
    here = next(each for each in runs if "stopped begins, for 3 s" in each.err.text)
    (other,) = (each for each in runs if each is not here)
    here.err.until("stopped is over")
    other.err.until("rank 1 trains on another machine, so stopped is for that one")
    assert "stopped begins" not in other.err.text


def callers(agent: Running) -> list[str]:
    """The connections of other machines' agents to this one."""
    held = {os.readlink(each) for each in Path(f"/proc/{agent.pid}/fd").iterdir() if each.is_symlink()}
    rows = [line.split() for line in Path(f"/proc/{agent.pid}/net/tcp").read_text().splitlines()[1:]]
    own = [row for row in rows if f"socket:[{row[9]}]" in held]
    ports = {row[1].split(":")[1] for row in own if row[3] == "0A"}
    return [row[2] for row in own if row[3] == "01" and row[1].split(":")[1] in ports]


def test_a_service_that_starts_again_is_watched_as_before(rack: Rack) -> None:
    """Its ranks bring it what the other machines know of it."""
    nodes = [rack.add(), rack.add()]
    sockets = [str(node.folder / "agent.sock") for node in nodes]
    agents = [
        node.spotguard("agent", "--provider", "none", "--socket", path)
        for node, path in zip(nodes, sockets, strict=True)
    ]
    for path in sockets:
        eventually(Path(path).exists, "a service does not listen")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={address(1)}:29400", "--rdzv-id=job"]
    for node, path in zip(nodes, sockets, strict=True):
        node.start(
            *launcher,
            *meeting,
            ERRING,
            "100000",
            "paced",
            "20",
            SPOTGUARD_SOCKET=path,
            SPOTGUARD_STORE=node.url,
            SPOTGUARD_RUN_ID="job",
            SPOTGUARD_EVERY="off",
        )
    eventually(lambda: callers(agents[1]), "no agent asks the second machine's")
    agents[1].send(signal.SIGKILL)
    agents[1].ended()
    again = nodes[1].spotguard("agent", "--provider", "none", "--socket", sockets[1])
    eventually(lambda: callers(again), "the first machine's agent does not find the new one")
    assert "is silent" not in agents[0].err.text
    nodes[1].take()
    agents[0].err.until("machine node2 of run job is silent: no heartbeat for 3 s")
    agents[0].err.until("training stands still: machine node2 is silent; rank 0")
