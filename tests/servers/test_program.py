"""A server of the tests leaves nothing behind: no process, no folder, not even when the test is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.processes import eventually
from tests.servers.program import ROOT, Server

# A server with a worker that leaves its session, as daemons do.
PROGRAM = """
import os, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
if (worker := os.fork()) == 0:
    os.setsid()
print(os.getpid(), file=open(f"pid-{'parent' if worker else 'worker'}", "w"), flush=True)
while True:
    listener.accept()[0].close()
"""


class Forking(Server):
    """Of the smallest kind."""

    def __init__(self, program: str = PROGRAM) -> None:
        super().__init__("forking")
        self._program = program

    def commands(self) -> Sequence[Sequence[str]]:
        self.number = self.port()
        return [[sys.executable, "-Sc", self._program, str(self.number)]]

    def answers(self) -> bool:
        socket.create_connection(("127.0.0.1", self.number), 10).close()
        return len(self.pids()) == 2

    def pids(self) -> list[int]:
        return [int(text) for path in self.folder.glob("pid-*") if (text := path.read_text())]


def gone(pid: int) -> bool:
    """Ended, and waited for by whoever had to."""
    return not Path(f"/proc/{pid}").exists()


def test_leaving_ends_the_workers_too() -> None:
    with Forking() as server:
        folder, pids = server.folder, server.pids()
    assert all(map(gone, pids))
    assert not folder.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.number), 10)


def test_a_killed_test_leaves_nothing() -> None:
    program = (
        "from tests.servers.test_program import Forking\n"
        "server = Forking().start(); print(server.folder, *server.pids(), flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as tester:
        assert tester.stdout is not None
        folder, *pids = tester.stdout.readline().split()
        tester.send_signal(signal.SIGKILL)
    assert len(pids) == 2
    eventually(lambda: all(gone(int(pid)) for pid in pids), "the programs ended")
    eventually(lambda: not Path(folder).exists(), "the folder went")


def test_a_program_that_fails_is_reported_with_its_last_words() -> None:
    server = Forking("import sys; sys.exit('no such device')")
    with pytest.raises(AssertionError, match="forking: it ended:\nno such device"):
        server.start()
    assert not server.folder.exists()
