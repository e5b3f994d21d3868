"""The listener thread's bad days: many descriptors, a stranger on the socket, an agent lost in the middle."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spotguard.hooks.control.callback import NoticeCallback
from spotguard.hooks.ipc.client import SocketClient
from spotguard.hooks.ipc.protocol import (
    Bye,
    CheckpointNow,
    Committed,
    Delivered,
    Failed,
    Leave,
    Message,
    Position,
    Preempt,
    Register,
)
from tests.fakes.agent import FakeAgent
from tests.fakes.talk import TIMEOUT
from tests.tiers import few_fast

NOTICE = Preempt("n1", 30.0, 3.0, "terminate", "a test")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, as a socket's path must be."""
    with tempfile.TemporaryDirectory(prefix="sg", dir="/tmp") as name:
        yield Path(name)


def test_a_process_with_a_thousand_open_files_hears_its_notice(folder: Path) -> None:
    """`select` ends at descriptor 1023, and with it would the only thread that listens."""
    path = folder / "a.sock"
    code = """
import os, resource, threading
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
import spotguard
told = threading.Event()
spotguard.on_notice(lambda notice: told.set())
print("told" if told.wait(100) else "not told")
"""
    with FakeAgent(path) as agent:
        env = {**os.environ, "SPOTGUARD_SOCKET": str(path)}
        child = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
        agent.welcome()
        agent.say(NOTICE)
        agent.hear(Committed)
        assert child.communicate(timeout=TIMEOUT)[0] == "told\n"


@pytest.mark.torch
def test_a_process_welcomed_with_a_notice_waits_and_never_trains(folder: Path) -> None:
    """The first steps of a small model would be over before the notice is heard."""
    pytest.importorskip("torch")
    path = folder / "a.sock"
    code = """
import torch, spotguard
guard = spotguard.register(model=torch.nn.Linear(1, 1))
print("registered")
for step in guard.steps(3):
    print("step", step)
"""
    with FakeAgent(path) as agent:
        env = {**os.environ, "SPOTGUARD_SOCKET": str(path), "SPOTGUARD_STORE": f"file://{folder}/store"}
        child = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
        agent.welcome(notice=True)
        agent.say(NOTICE)
        assert "not begun" in agent.hear(Failed).reason
        agent.say(Leave("n1", 75))
        assert child.communicate(timeout=TIMEOUT)[0] == "registered\n"
        assert child.returncode == 75
    assert not list((folder / "store").glob("**/checkpoints"))


@pytest.mark.torch
@pytest.mark.parametrize("every", few_fast(["off", "3600"]))
def test_a_checkpoint_that_the_agent_asks_for_is_made_beside_training(folder: Path, every: str) -> None:
    """Once, and training goes on. `off` holds against a mere warning, and not against a machine that goes."""
    pytest.importorskip("torch")
    path, stop = folder / "a.sock", folder / "stop"
    code = f"""
import pathlib, threading, torch, spotguard
guard, pause = spotguard.register(model=torch.nn.Linear(1, 1)), threading.Event()
for step in guard.steps(10**9):
    pause.wait(0.01)
    if pathlib.Path({str(stop)!r}).exists():
        break
guard.save()
print("went on")
"""
    with FakeAgent(path) as agent:
        env = {
            **os.environ,
            "SPOTGUARD_SOCKET": str(path),
            "SPOTGUARD_STORE": f"file://{folder}/store",
            "SPOTGUARD_EVERY": every,
        }
        child = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
        assert agent.welcome().checkpoints
        while agent.hear(Position).step < 1:
            pass  # until it trains
        agent.say(CheckpointNow("a warning", going=False))
        if every == "off":
            agent.say(CheckpointNow("the end of this machine", going=True))
        first = agent.hear(Committed)
        assert (first.id, first.step > 0) == ("", True)
        agent.hear(Position)  # two seconds later: one question, one checkpoint
        stop.touch()
        last = agent.hear(Committed)
        agent.hear(Bye)
        assert child.communicate(timeout=TIMEOUT)[0] == "went on\n"
        assert child.returncode == 0
    assert last.step > first.step
    assert len(list((folder / "store").glob("*/checkpoints/*/COMMIT.json"))) == 2


def test_an_answer_is_said_again_to_an_agent_that_lost_us(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function is called once; what it came to is told to whoever asks."""
    path, calls, go = folder / "a.sock", [], threading.Event()

    def save(notice: object) -> None:
        calls.append(notice)
        assert go.wait(TIMEOUT)

    with FakeAgent(path) as agent:
        callback = NoticeCallback(save, str(path))
        try:
            agent.welcome()
            agent.say(NOTICE)
            agent.hear(Delivered)
            agent.hang_up()
            go.set()
            agent.welcome()
            agent.say(NOTICE)
            assert agent.hear(Committed).id == "n1"
            assert len(calls) == 1
        finally:
            callback.close()


def test_a_mistake_in_a_handler_does_not_end_the_listener(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the agent is met anew."""
    path, heard, twice = folder / "a.sock", [], threading.Event()

    def on_message(message: Message) -> None:
        heard.append(message)
        if len(heard) == 1:
            raise RuntimeError("planted")
        twice.set()

    with FakeAgent(path) as agent:
        client = SocketClient(
            str(path),
            hello=lambda: Register(os.getpid(), "run", "train.py"),
            on_message=on_message,
            position=lambda: Position(1),
            reconnect=0.05,
        )
        client.start()
        try:
            agent.welcome()
            agent.say(NOTICE)
            agent.welcome()  # it came back
            agent.say(NOTICE)
            assert twice.wait(TIMEOUT)
            assert heard == [NOTICE, NOTICE]
        finally:
            client.close()
    assert "please report it" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's socket needs root to make one")
def test_a_stranger_on_the_socket_is_not_obeyed(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever can put a socket where the agent's was could end training by one word."""
    folder.chmod(0o777)
    path = folder / "a.sock"
    code = f"""
import os, socket
os.setuid(65534)
s = socket.socket(socket.AF_UNIX); s.bind({str(path)!r}); s.listen()
os.chmod({str(path)!r}, 0o777)
print("there", flush=True)
c, _ = s.accept()
print(len(c.recv(100)), flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "there\n"
        client = SocketClient(
            str(path),
            hello=lambda: Register(os.getpid(), "run", "train.py"),
            on_message=lambda message: None,
            position=lambda: Position(1),
        )
        client.start()
        try:
            assert stranger.stdout.readline() == "0\n"  # not even our name
            assert not client.guarded
        finally:
            client.close()
    assert "user 65534 listens there" in caplog.text


@pytest.mark.torch
def test_each_later_agent_learns_where_the_first_one_answered_heartbeats(folder: Path) -> None:
    """The other machines look for it there."""
    pytest.importorskip("torch")
    from spotguard.hooks.control.agent_session import AgentSession

    path = folder / "a.sock"
    hello = Register(os.getpid(), "job", "train.py", elsewhere=True)
    session = AgentSession(lambda: hello, lambda: Position(0), print, lambda: None, lambda place: None)
    session.built()
    with FakeAgent(path) as agent, ThreadPoolExecutor(1) as pool:
        first = pool.submit(agent.welcome, heartbeat="4242 first")
        session.connect(str(path))
        assert first.result(TIMEOUT).heartbeat == ""
        assert session.heartbeat == "4242 first"
        assert [agent.welcome(heartbeat="4243 other").heartbeat for _ in range(2)] == ["4242 first"] * 2
        session.close()
