"""What a real command leaves behind: real processes, in its group and in sessions of their own, and the next start."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from spotguard.agent import app
from spotguard.agent.config.options import PARENT, Options
from spotguard.agent.config.resolve import resolve
from spotguard.agent.events import Closed, Opened
from spotguard.agent.process import proctree
from tests.fakes.report import TIMEOUT
from tests.fakes.serving import Events, Serving

ROOT = Path(__file__).parents[3]

#: Registers, says its pid into a file, and waits. "own" leaves the group, "silent" its socket.
WORKER = f"""
import os, signal, sys
sys.path[:0] = [{str(ROOT)!r}]
from pathlib import Path
from tests.fakes.hook import FakeHook
from spotguard.hooks.ipc.protocol import *
if "own" in sys.argv: os.setsid()
hook = FakeHook(Path(sys.argv[1]))
hook.say(Register(os.getpid(), "r", "train.py", "file:///s"))
hook.hear(Welcome)
if "silent" in sys.argv: hook.close()
with open(sys.argv[2], "a") as file: file.write(f"{{os.getpid()}}\\n")
while True: signal.pause()
"""

#: Starts a worker, waits until it stands, and dies of SIGKILL; started again, it ends with 0.
LAUNCHER = """
import os, signal, subprocess, sys
socket, pids, code, *how = sys.argv[1:]
if os.path.exists(pids): sys.exit(0)
os.mkfifo(pids)
subprocess.Popen([sys.executable, "-c", code, socket, pids, *how])
with open(pids) as file: pid = file.readline()
os.unlink(pids)
with open(pids, "w") as file: file.write(pid)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def options(folder: Path, tmp_path: Path) -> Options:
    flags = {
        "provider": "none",
        "socket": str(folder / "r.sock"),
        "run-id": "r",
        "store": f"file://{tmp_path}",
    }
    return resolve("run", flags, {})


def gone(pid: int) -> bool:
    """Whether it ends: waited for, since SIGKILL takes a moment."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], TIMEOUT)[0])
    finally:
        os.close(pidfd)


@pytest.mark.parametrize("how", [[], ["own"]])
def test_a_launcher_that_crashes_takes_its_workers_along(
    options: Options, tmp_path: Path, how: list[str]
) -> None:
    """Started again, the command finds its run id free; also where the worker has a session of its own."""
    pids = tmp_path / "pids"
    assert options.socket is not None
    command = [sys.executable, "-c", LAUNCHER, options.socket, str(pids), WORKER, *how]
    assert app.run(replace(options, max_restarts=1), command) == 0
    assert gone(int(pids.read_text()))


def test_a_deaf_child_of_a_shell_does_not_outlive_the_preemption(options: Options, tmp_path: Path) -> None:
    """TERM ends the shell at once; what ignores it has until the reserve, and is gone when 75 comes."""
    pids = tmp_path / "pids"
    code = f"""
import os, signal, subprocess, sys
child = subprocess.Popen(["sh", "-c", "trap '' TERM; echo $$ > {pids}.new; mv {pids}.new {pids}; sleep 1000 & wait; wait"])
while not os.path.exists({str(pids)!r}): pass
os.kill(os.getppid(), signal.SIGTERM)
signal.pause()
"""
    assert app.run(replace(options, window=2.0, reserve=1.0), [sys.executable, "-c", code]) == 75
    assert gone(int(pids.read_text()))


def test_a_worker_whose_launcher_is_gone_leaves_by_its_own_exit(options: Options, tmp_path: Path) -> None:
    """Saved, and parked in a session of its own: its exit handlers run, and no signal ends it."""
    worker = f"""
import atexit, os, signal, sys, time
sys.path[:0] = [{str(ROOT)!r}]
from pathlib import Path
from tests.fakes.hook import FakeHook
from spotguard.hooks.ipc.protocol import *
os.setsid()
hook = FakeHook(Path({options.socket!r}))
hook.say(Register(os.getpid(), "r", "train.py", "file:///s"))
hook.hear(Welcome)
os.kill(int(sys.argv[1]), signal.SIGTERM)
notice = hook.hear(Preempt)
hook.say(Committed(notice.id, 7, 1000, 0.5, "file:///s/7", time.monotonic()))
code = hook.hear(Leave).code
atexit.register(lambda: Path({str(tmp_path)!r}, "left").write_text(f"{{os.getpid()}} {{code}}"))
sys.exit(code)
"""
    launcher = (
        f"import os, subprocess, sys; subprocess.run([sys.executable, '-c', {worker!r}, str(os.getppid())])"
    )
    assert app.run(options, [sys.executable, "-c", launcher]) == 75
    pid, code = (tmp_path / "left").read_text().split()
    assert code == "75"
    assert gone(int(pid))


#: Leaves a child, and is gone. "title": both have overwritten the memory of their environment, as setproctitle does it.
LEAVING = """
import ctypes, os, signal, sys
if "title" in sys.argv:
    fields = open("/proc/self/stat").read().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    ctypes.memset(start, 0, end - start)
if os.fork():
    os._exit(0)
signal.alarm(60)
os.write(1, f"{os.getpid()}\\n".encode())
signal.pause()
"""


@pytest.mark.parametrize("how", ["plain", "title"])
def test_an_orphan_is_known_by_its_environment_or_by_its_session(how: str) -> None:
    """The socket's path is any bytes."""
    env = {**os.environ, PARENT: os.fsdecode(b"r:/tmp/\xe9.sock")}
    with subprocess.Popen(
        [sys.executable, "-c", LEAVING, how], env=env, start_new_session=True, stdout=subprocess.PIPE
    ) as leader:
        assert leader.stdout is not None
        pid = int(leader.stdout.readline())
    assert proctree.look(leader.pid, frozenset({leader.pid}), env) == (True, True)
    assert proctree.look(os.getpid(), frozenset({pid}), env)[1] is False, "that number is another one's"
    proctree.send(signal.SIGKILL, frozenset({leader.pid}), env)
    assert gone(pid)
    assert proctree.look(leader.pid, frozenset({leader.pid}), env) == (False, False)


@pytest.mark.parametrize("how", ["own", "silent"])
def test_a_session_is_signalled_with_and_without_its_socket(
    serve: Serving, events: Events, tmp_path: Path, how: str
) -> None:
    """By its pidfd; and not where it is in the group that is signalled as a whole."""
    server = serve()
    command = [sys.executable, "-c", WORKER, str(server.path), str(tmp_path / "pids"), "own", how]
    with subprocess.Popen(command) as worker:
        session = events.next(Opened).session
        if how == "silent":
            assert events.next(Closed).alive
        server.signal(session, signal.SIGKILL, worker.pid)  # its own group: spared
        server.signal(session, signal.SIGTERM, 0)
        assert worker.wait(TIMEOUT) == -signal.SIGTERM
    events.next(Closed, lambda event: event.session == session and not event.alive)
    server.signal(session, signal.SIGTERM, 0)  # nobody is there any more


def test_a_workers_child_in_its_own_session_ends_and_a_stranger_stays(
    options: Options, tmp_path: Path
) -> None:
    """A data loader's worker, below a launcher's worker that SIGTERM has ended. Who was not given our socket is not ours."""
    pids = tmp_path / "pids"
    worker = f"""
import os, signal, subprocess, sys, time
sys.path[:0] = [{str(ROOT)!r}]
from pathlib import Path
from tests.fakes.hook import FakeHook
from spotguard.hooks.ipc.protocol import *
os.setsid()
children = [subprocess.Popen(["sleep", "1000"], env=env) for env in (None, {{"PATH": os.environ["PATH"]}})]
Path({str(pids)!r}).write_text(" ".join(str(child.pid) for child in children))
hook = FakeHook(Path({options.socket!r}))
hook.say(Register(os.getpid(), "r", "train.py", "file:///s"))
hook.hear(Welcome)
os.kill(int(sys.argv[1]), signal.SIGTERM)
notice = hook.hear(Preempt)
hook.say(Committed(notice.id, 7, 1000, 0.5, "file:///s/7", time.monotonic()))
while True: signal.pause()
"""
    launcher = f"""
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: worker.terminate())
worker = subprocess.Popen([sys.executable, "-c", {worker!r}, str(os.getppid())])
sys.exit(worker.wait())
"""
    assert app.run(options, [sys.executable, "-c", launcher]) == 75
    loader, stranger = map(int, pids.read_text().split())
    stays = os.pidfd_open(stranger)
    try:
        assert not select.select([stays], [], [], 0)[0]
        signal.pidfd_send_signal(stays, signal.SIGKILL)
    finally:
        os.close(stays)
    assert gone(loader)
