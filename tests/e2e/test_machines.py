"""The rack itself, and single jobs on its nodes: what a machine is, and that it can be taken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.machines import Node, Rack, address, require_machines
from tests.e2e.processes import Running, eventually
from tests.e2e.trainee import Trainee

pytestmark = pytest.mark.wholepath

#: Serves one connection at port 7000, and says each byte that comes; "over" when the other side has ended it.
ANSWERING = """
import socket
with socket.create_server(("", 7000)) as server:
    print("listening", flush=True)
    connection, peer = server.accept()
    print("from", peer[0], flush=True)
    while said := connection.recv(1):
        print("heard", said.decode(), flush=True)
    print("over", flush=True)
"""
#: Sends each line of its stdin to the node that is named.
ASKING = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000)) as connection:
    for line in sys.stdin:
        connection.send(line.strip().encode())
"""
#: Makes a node with a process on it, and waits for ever.
HOLDING = """
import pathlib, sys, threading
from tests.e2e.machines import Rack
with Rack(pathlib.Path(sys.argv[1])) as rack:
    node = rack.add()
    node.start("sh", "-c", "trap '' TERM HUP; sleep 1000 & echo here; wait").out.until("here")
    print(*node.everybody(), flush=True)
    threading.Event().wait()
"""


@pytest.fixture
def rack(tmp_path: Path) -> Iterator[Rack]:
    with Rack(tmp_path) as made:
        yield made


def python(node: Node, program: str, *words: str) -> Running:
    return node.start(sys.executable, "-u", "-c", program, *words)


def answer(node: Node, *words: str) -> str:
    asked = node.start(*words)
    assert asked.ended() == 0, asked.account()
    return asked.out.to_the_end().strip()


def test_a_node_is_a_machine_of_its_own_and_its_end_is_silent(rack: Rack) -> None:
    """Own name, own processes, own cloud; the others are there by name. Once taken nothing is left there, and nobody hears of it."""
    one, two = rack.add("aws"), rack.add("azure")
    assert answer(one, "hostname", "--fqdn") == "node1"
    assert answer(two, "cat", "/sys/class/dmi/id/chassis_asset_tag").startswith("7783-7084")
    assert answer(one, "sh", "-c", "echo $$") == answer(two, "sh", "-c", "echo $$")
    reachable = (
        "import socket,sys; sys.exit(socket.socket().connect_ex(('192.0.2.1', 80)) != 101)"  # unreachable
    )
    assert answer(one, sys.executable, "-c", reachable) == ""

    answering = python(two, ANSWERING)
    answering.out.until("listening")
    asking = python(one, ASKING, "node2")
    answering.out.until(f"from {address(1)}")
    asking.say("a")
    answering.out.until("heard a")
    one.cut()
    asking.say("b")
    one.plug()
    answering.out.until("heard b")  # sent again by TCP, once it could

    everybody = one.everybody()
    assert asking.pid in everybody
    one.take()
    assert not any(Path(f"/proc/{pid}").exists() for pid in everybody)
    assert asking.ended() == -9
    two.kill(answering.pid)  # it would wait for ever: no end of the connection has come
    assert "over" not in answering.out.to_the_end()


def test_nothing_is_left_of_a_rack_whose_test_was_killed(tmp_path: Path) -> None:
    require_machines()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    ) as test:
        assert test.stdout is not None
        pids = [int(word) for word in test.stdout.readline().split()]
        test.kill()
    assert len(pids) == 3
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), f"the end of {pids}")


@pytest.mark.slow
@pytest.mark.torch
def test_a_notice_is_for_one_machine_alone(rack: Rack, plain_digests: list[str]) -> None:
    """Told nothing of the cloud, the run on it saves and leaves with 75; the one beside it takes its steps. A third goes on."""
    jobs = [(Trainee(node, plain_digests), node) for node in (rack.add(), rack.add())]
    runs = [node.guarded(f"--run-id job{node.number} --every off", *job.command()) for job, node in jobs]
    for (job, _), running in zip(jobs, runs, strict=True):
        assert job.begun(running) == 0
        running.say("go 3")
        job.stepped(running, 3)
        running.err.until("aws spot/instance-action: seeing")
    (_, going), (job, staying) = jobs[0], jobs[1]
    going.preempt(120)
    runs[0].err.until("gate at step 3")
    runs[0].say("free")
    assert runs[0].ended() == 75
    going.take()
    assert going.committed("job1") == [(1, 3, 0)]

    runs[1].say("free")
    job.finished(runs[1])
    assert runs[1].ended() == 0
    assert [seen for seen in staying.service.requests if seen.status == 200], "nobody looked there"

    third = rack.add()
    again = Trainee(third, plain_digests)
    running = third.guarded("--run-id job1 --every off", *again.command())
    assert again.begun(running) == 3
    running.say("free")
    again.finished(running)
    assert running.ended() == 0
