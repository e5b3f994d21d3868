"""A user of a service's group floods it with each message at its limit: the agent answers everybody else as before.

The test prints the figures of the agent, and asserts what must hold on a busy machine too. `SOAK_SECONDS` chooses the length.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from spotguard.agent.ipc import control
from spotguard.hooks.ipc.protocol import (
    Ask,
    Committed,
    Delivered,
    Leave,
    Message,
    Position,
    Preempt,
    Register,
    Role,
    Watch,
    WatchMachines,
)
from tests.agent.core.test_flood import KINDS
from tests.fakes.hook import FakeHook

SECONDS = float(os.environ.get("SOAK_SECONDS", "60"))
#: A user may send 2,048 messages a second, and each connection 20 for good.
CONNECTIONS, A_SECOND = 50, 19.0
#: Connections a second that ask or register, of the 1,024 that a user may have.
VISITS = 300.0
NOBODY = 65534

#: `spotguard agent`, which prints at its end how long its events took in milliseconds, by the clock and of CPU.
AGENT = """
import json, sys, time
from spotguard.agent.loop import Agent
from spotguard.cli.main import main
took, real = [], Agent._handle
def handle(self, event):
    began = time.perf_counter(), time.thread_time()
    real(self, event)
    took.append((time.perf_counter() - began[0], time.thread_time() - began[1]))
Agent._handle = handle
try:
    code = main(sys.argv[1:])
finally:
    ranked = [sorted(each)[int(0.99 * len(took))] * 1e3 for each in zip(*took)]
    print(json.dumps([len(took), *ranked]))
"""

VISITORS: dict[str, Callable[[int], tuple[Role, Message]]] = {
    "status": lambda _: (Role.ANSWERER, Ask("status")),
    "drill": lambda _: (Role.ANSWERER, Ask("drill", 30.0)),
    "watch": lambda _: (Role.ANSWERER, Watch(1)),
    "register": lambda n: (Role.AGENT_NEW, Register(1, f"v{n}", "train.py", f"file:///v{n}")),
}


def flood(path: Path, kind: str) -> None:
    """Send for ever, as another user. A connection that the agent closes is made anew."""
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    hooks: dict[int, FakeHook] = {}
    pause = 1.0 / (VISITS if kind in VISITORS else CONNECTIONS * A_SECOND)
    for n in itertools.count():
        due = time.monotonic() + pause
        with suppress(OSError, AssertionError):
            number = n % CONNECTIONS
            if kind in VISITORS:
                if number in hooks:
                    hooks.pop(number).close()
                role, message = VISITORS[kind](n)
                hooks[number] = FakeHook(path, role)
                hooks[number].say(message)
            else:
                if number not in hooks:
                    hooks[number] = FakeHook(path)
                    hooks[number].say(Register(1, f"r{number}", "train.py", f"file:///r{number}"))
                try:
                    # Machines that an agent would ask are outside: it gets names that it takes for none.
                    said = WatchMachines({f"127.0.0.1 1 s{n}": "n"}) if kind == "machines" else KINDS[kind](n)
                    hooks[number].say(said)
                except OSError:
                    hooks.pop(number).close()
        time.sleep(max(0.0, due - time.monotonic()))


def resident(pid: int) -> float:
    """RSS in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path that every user may enter, as a service's socket directory."""
    path = Path("/tmp", f"spotguard-flood-{os.getpid()}")
    path.mkdir(mode=0o700)
    yield path
    for each in path.iterdir():
        each.unlink()
    path.rmdir()


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("kind", [*KINDS, *VISITORS])
def test_a_flood_holds_up_nobody_else(
    kind: str, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, notice = folder / "s.sock", tmp_path / "notice"
    tmp_path.chmod(0o700)
    words = ["agent", "--provider", "none", "--socket", str(path), "--notice-file", str(notice)]
    with ExitStack() as stack:
        with open(tmp_path / "agent.log", "wb") as log:
            agent = subprocess.Popen(
                [sys.executable, "-c", AGENT, *words], stdout=subprocess.PIPE, stderr=log
            )
        stack.callback(agent.kill)
        while not path.exists():
            time.sleep(0.05)
        folder.chmod(0o755)
        path.chmod(0o666)
        rank = stack.enter_context(FakeHook.registered(path))
        rank.say(Position(1, still=0.1, phase="forward", attempt=1))
        before = resident(agent.pid)
        flooder = os.fork()
        if flooder == 0:
            try:
                flood(path, kind)
            finally:
                os._exit(1)
        stack.callback(os.waitpid, flooder, 0)
        stack.callback(os.kill, flooder, signal.SIGKILL)
        time.sleep(SECONDS / 2)
        notice.write_text("the host is drained")  # an empty one has to be seen twice
        touched = time.monotonic()
        told = rank.hear(Preempt)
        after = time.monotonic() - touched
        rank.say(
            Delivered(told.id, time.monotonic()),
            Committed(told.id, 7, 1000, 0.5, "file:///s/7", time.monotonic()),
        )
        rank.hear(Leave)
        left = time.monotonic() - touched
        time.sleep(SECONDS / 2)
        more = resident(agent.pid) - before
        assert control.status(path)["pid"] == agent.pid
        os.kill(flooder, signal.SIGKILL)
        agent.terminate()
        (output, _) = agent.communicate(timeout=100)
    count, wall, cpu = json.loads(output)
    with capfd.disabled():
        print(
            f"\n{kind}: notice after {after:.2f} s, one poll a second; committed job left after {left:.2f} s; "
            f"{count} events, p99 {wall:.2f} ms ({cpu:.2f} ms of CPU); {more:+.1f} MiB"
        )
    assert more <= 16
