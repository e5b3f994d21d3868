"""What a killed agent left: its record beside the socket, the processes that it names, and a start that finds them."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotguard.agent import app, outcome
from spotguard.agent.config.options import PARENT, Options
from spotguard.agent.config.resolve import resolve
from spotguard.agent.events import CommandEnded, Event
from spotguard.agent.ipc.listener import listen
from spotguard.agent.process.proctree import inherited, record_of, recorded
from spotguard.agent.process.supervisor import Supervisor
from tests.fakes.awake import STAYS_AWAKE
from tests.fakes.report import TIMEOUT

ROOT = Path(__file__).parents[3]

#: Asks again until an agent listens, registers, saves at its word and leaves; says each of it.
TRAINING = f"""
import os, signal, sys, time
sys.path[:0] = [{str(ROOT)!r}]
from pathlib import Path
from tests.fakes.hook import FakeHook
from spotguard.hooks.ipc.protocol import *
{STAYS_AWAKE}
def say(word): os.write(1, word.encode() + b"\\n")
say("trains")
while True:
    try:
        hook = FakeHook(Path(sys.argv[1]))
        break
    except OSError: signal.pause()
hook.say(Register(os.getpid(), "r", "train.py", "file:///s"))
hook.hear(Welcome)
notice = hook.hear(Preempt)
say(notice.kind)
hook.say(Committed(notice.id, 7, 1000, 0.5, "file:///s/7", time.monotonic()))
code = hook.hear(Leave).code
say("leaves")
sys.exit(code)
"""


class Left:
    """Processes as an agent has started them that is no more."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.env = {**os.environ, PARENT: f"r:{socket}"}
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        started = subprocess.Popen(
            words, env=self.env, stdout=subprocess.PIPE, text=True, process_group=0, stdin=subprocess.DEVNULL
        )
        self._started.append(started)
        return started

    def close(self) -> None:
        for each in self._started:
            each.kill()
            each.communicate(timeout=TIMEOUT)


@pytest.fixture
def left(folder: Path) -> Iterator[Left]:
    made = Left(folder / "r.sock")
    yield made
    made.close()


@pytest.fixture
def options(left: Left, tmp_path: Path) -> Options:
    flags = {"provider": "none", "socket": str(left.socket), "run-id": "r", "store": f"file://{tmp_path}"}
    return resolve("run", flags, {})


def lock_of(socket: Path) -> Path:
    return socket.with_name(f".{socket.name}.lock")


def test_a_record_is_of_one_process_and_of_no_later_one_with_its_number(left: Left) -> None:
    process = left.start("sleep", "1000")
    record = record_of(process.pid, left.env)
    assert recorded(record) == process.pid
    pid, born, boot, run = record.split()
    for other in (f"{pid} {int(born) + 1} {boot} {run}", f"{pid} {born} {'0' * 36} {run}", pid, "", "x y z"):
        assert recorded(other) == 0
    process.kill()
    process.wait(TIMEOUT)
    assert (recorded(record), record_of(process.pid, left.env)) == (0, "")


def test_an_inherited_process_is_the_command_or_shares_its_socket(left: Left) -> None:
    """Without a record the agent before had ended in order, and what is there was left on purpose."""
    command, worker = left.start("sleep", "1000"), left.start("sleep", "1000")
    record = record_of(command.pid, left.env)
    assert inherited(record, left.env) == command.pid
    assert inherited("", left.env) is None
    assert inherited(record, {PARENT: f"another:{left.socket}"}) is None, "that run's, at the same socket"
    command.kill()
    command.wait(TIMEOUT)
    assert inherited(record, left.env) == 0
    worker.kill()
    worker.wait(TIMEOUT)
    assert inherited(record, left.env) is None


def test_the_record_outlives_its_agent_only_beside_a_command_that_lives(left: Left) -> None:
    """An end in order while the command runs leaves it too: the next start has to know."""
    command = left.start("sleep", "1000")
    record = record_of(command.pid, left.env)
    first = listen(left.socket, lives=recorded)
    assert first.before == ""
    first.write_down(record)
    first.close()
    second = listen(left.socket, lives=recorded)
    assert second.before == record
    command.kill()
    command.wait(TIMEOUT)
    second.close()
    assert list(left.socket.parent.iterdir()) == []


def test_a_newer_record_takes_the_place_of_a_longer_one(left: Left) -> None:
    command = left.start("sleep", "1000")
    listener = listen(left.socket, lives=recorded)
    listener.write_down("x" * 100)
    listener.write_down(record_of(command.pid, left.env))
    assert lock_of(left.socket).read_text() == record_of(command.pid, left.env)
    listener.close()


def test_an_orphan_is_signalled_and_its_end_is_told_though_it_is_nobodys_child(left: Left) -> None:
    """What it was asked before the next start is not asked of that one."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    orphan = left.start("sleep", "1000")
    supervisor = Supervisor(["true"], env={}, post=events.put, terminal=lambda: None)
    supervisor.adopt(orphan.pid)
    supervisor.signal(signal.SIGTERM)
    assert orphan.wait(TIMEOUT) == -signal.SIGTERM
    assert events.get(timeout=TIMEOUT) == CommandEnded(orphan.pid, 0)
    pid = supervisor.start()
    assert events.get(timeout=TIMEOUT) == CommandEnded(pid, 0)
    supervisor.close()


def test_without_a_command_no_group_is_signalled() -> None:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    supervisor = Supervisor(["true"], env={}, post=events.put, terminal=lambda: None)
    supervisor.adopt(0)
    assert events.get(timeout=TIMEOUT) == CommandEnded(0, 0)
    supervisor.signal(signal.SIGTERM)
    supervisor.kill()
    assert not supervisor.look().group
    pid = supervisor.start()
    assert events.get(timeout=TIMEOUT) == CommandEnded(pid, 0)
    supervisor.close()


def test_a_start_ends_the_orphan_before_it_starts_its_command(left: Left, options: Options) -> None:
    """It is told, commits and leaves; the command finds its run id free, and the code is the command's own."""
    orphan = left.start(sys.executable, "-c", TRAINING, str(left.socket))
    assert orphan.stdout is not None
    assert orphan.stdout.readline() == "trains\n"
    lock_of(left.socket).write_text(record_of(orphan.pid, left.env))
    code = f"import os, sys; sys.exit(5 if os.path.exists('/proc/{orphan.pid}/fd/1') else 4)"
    assert app.run(options, [sys.executable, "-c", code]) == 4
    assert orphan.communicate(timeout=TIMEOUT)[0] == "orphan\nleaves\n"
    assert orphan.returncode == 75
    (record,) = outcome.earlier(left.socket.parent, "r")
    assert (record["kind"], record["step"], record["ended"]) == ("orphan", 7, "left when asked")
    assert (record["code"], record["returncode"]) == (None, None)
    assert not left.socket.exists()
    assert not lock_of(left.socket).exists()


def test_a_command_that_runs_is_written_down(left: Left, options: Options) -> None:
    """As long as it does, and no longer."""
    code = (
        f"print(open({str(lock_of(left.socket))!r}).read(), file=open({str(left.socket)!r} + '.said', 'w'))"
    )
    wait = (
        f"{STAYS_AWAKE}import os\nwhile not os.path.getsize({str(lock_of(left.socket))!r}): signal.pause()\n"
    )
    assert app.run(options, [sys.executable, "-c", wait + code]) == 0
    pid, *_ = Path(f"{left.socket}.said").read_text().split()
    assert int(pid) > 0
    assert not lock_of(left.socket).exists()
