"""The hook's end of the socket: whatever the agent does, training goes on, and a notice is heard when it is back."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from spotguard.hooks.ipc.client import SocketClient
from spotguard.hooks.ipc.protocol import (
    Bye,
    Delivered,
    Message,
    Position,
    Preempt,
    Refused,
    Register,
    Welcome,
    encode,
)
from tests.fakes.agent import FakeAgent
from tests.fakes.talk import TIMEOUT

#: Seconds between two attempts to find a lost agent.
SOON = 0.05
NOTICE = Preempt("n1", 30.0, 3.0, "terminate", "a test")


@pytest.fixture
def path() -> Iterator[Path]:
    """Short, as a socket's path must be."""
    with tempfile.TemporaryDirectory(prefix="sg", dir="/tmp") as name:
        yield Path(name) / "a.sock"


class Listening:
    """A client, and what it heard."""

    def __init__(self, path: Path) -> None:
        self.heard: list[Message] = []
        self._changed = threading.Condition()
        self.steps = 0
        self.client = SocketClient(
            os.fspath(path),
            hello=lambda: Register(os.getpid(), "run", f"at {self.steps}"),
            on_message=self._take,
            position=lambda: Position(self.steps),
            reconnect=SOON,
        )

    def _take(self, message: Message) -> None:
        with self._changed:
            self.heard.append(message)
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.heard) >= count, TIMEOUT)


@contextmanager
def listening(path: Path) -> Iterator[Listening]:
    it = Listening(path)
    it.client.start()
    try:
        yield it
    finally:
        it.client.close()


def test_a_notice_is_heard_and_answered(path: Path) -> None:
    """What either side says reaches the other; goodbye is said at the end."""
    with FakeAgent(path) as agent:
        with listening(path) as it:
            assert agent.welcome().run_id == "run"
            agent.say(NOTICE)
            it.wait(1)
            assert it.heard == [NOTICE]
            assert it.client.send(Delivered("n1", 1.0))
            assert agent.hear(Delivered).id == "n1"
        agent.hear(Bye)


@pytest.mark.parametrize("there", [True, False], ids=["agent", "no agent"])
def test_a_closed_client_leaves_no_descriptor_behind(path: Path, there: bool) -> None:
    """A sweep makes a guard for every trial, in one process; a fork after that closes nobody else's."""
    with FakeAgent(path) if there else nullcontext() as agent:
        before = len(os.listdir("/proc/self/fd"))
        with listening(path) as it:
            if agent is not None:
                agent.welcome()
                it.client.wait_answered(TIMEOUT)
        assert not it.client._thread.is_alive()
        if agent is not None:
            agent.hear(Bye)
        with socket.socket() as others:
            it.client.forget()  # in a child that was forked later
            assert others.fileno() >= 0
            assert os.path.lexists(f"/proc/self/fd/{others.fileno()}")
        assert it.client._wake.fileno() == it.client._waker.fileno() == -1
        assert there or len(os.listdir("/proc/self/fd")) == before


def test_the_position_follows_the_welcome_at_once(path: Path) -> None:
    """Before anything else, at each connection: `status` need not wait for the next time."""
    with FakeAgent(path) as agent, listening(path) as it:
        for step in (3, 7):
            it.steps = step
            agent.welcome()
            agent.say(NOTICE)
            it.wait(1)
            assert it.client.send(Delivered("n1", 1.0))
            assert agent.hear(Message) == Position(step)
            it.heard.clear()


def test_a_position_that_is_not_there_yet_is_not_said(path: Path) -> None:
    """While `register` is at work; the connection stands all the same, and it can be said when there is one."""
    where: list[Position] = []
    client = SocketClient(
        os.fspath(path),
        hello=lambda: Register(os.getpid(), "run", "n"),
        on_message=lambda message: None,
        position=lambda: where[0] if where else None,
    )
    with FakeAgent(path) as agent:
        client.start()
        agent.welcome()
        client.wait_answered(TIMEOUT)
        assert client.send(Delivered("n1", 1.0))
        assert agent.hear(Message) == Delivered("n1", 1.0)
        where.append(Position(5))
        client.tell_position()
        assert agent.hear(Message) == Position(5)
        client.close()


def test_an_agent_that_comes_back_is_told_who_is_here_now(path: Path) -> None:
    """A new connection, a new hello, and the notice that is pending there is heard."""
    with FakeAgent(path) as agent, listening(path) as it:
        assert agent.welcome().name == "at 0"
        it.steps = 7
        agent.hang_up()
        assert agent.welcome().name == "at 7"
        agent.say(NOTICE)
        it.wait(1)
        assert it.client.guarded


def test_a_message_that_its_handler_cannot_take_costs_one_connection(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread is the only one that receives notices: it connects again, and takes the next one."""
    with FakeAgent(path) as agent, listening(path) as it:
        taken = it.client._on_message

        def fails(message: Message) -> None:
            it.client._on_message = taken
            raise RuntimeError("a bug")

        it.client._on_message = fails
        agent.welcome()
        agent.say(NOTICE)
        agent.welcome()
        agent.say(NOTICE)
        it.wait(1)
    assert "internal error; please report it [SG704]" in caplog.text


def test_without_an_agent_training_goes_on(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One warning, nothing is sent, and when the agent comes it is found."""
    with listening(path) as it:
        assert not it.client.send(Delivered("n1", 1.0))
        assert not it.client.guarded
        with FakeAgent(path) as agent:
            agent.welcome()
            agent.say(NOTICE)
            it.wait(1)
            assert caplog.text.count("unguarded") <= 1  # before that agent is lost in its turn


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 64,
        b"\x40\x00\x00\x00",
        b"\x00\x00\x00\x02[]",
        encode(Delivered("x", 1.0)),
        b'\x00\x00\x00\x07{"typ"}',
    ],
    ids=["garbage", "1 GiB", "no object", "a hook's word", "no JSON"],
)
def test_an_agent_that_speaks_nonsense_is_left_and_met_anew(data: bytes, path: Path) -> None:
    """Nothing of it is believed, and nothing breaks."""
    with FakeAgent(path) as agent, listening(path) as it:
        agent.welcome()
        agent.talk.sock.sendall(data)
        agent.welcome()
        agent.say(NOTICE)
        it.wait(1)
        assert it.heard == [NOTICE]


def test_a_refusal_is_heard(path: Path) -> None:
    """And its reason kept for whoever asks."""
    with FakeAgent(path) as agent, listening(path) as it:
        agent.take()
        agent.say(Refused("another process has this run id"))
        it.client.wait_answered(TIMEOUT)
        assert it.client.refused == "another process has this run id"
        assert not it.client.guarded


def test_a_forked_child_forgets_and_the_parent_does_not_notice(path: Path) -> None:
    """The child's descriptors are closed; the parent's connection stands, in a process of its own."""
    code = """
import os, sys
from spotguard.hooks.control.ending.sigterm import in_child
from spotguard.hooks.ipc.client import SocketClient
from spotguard.hooks.ipc.protocol import Position, Register, Delivered
client = SocketClient(sys.argv[1], hello=lambda: Register(os.getpid(), "r", "n"), on_message=print, position=lambda: Position(0))
client.start()
client.wait_answered(20)
in_child(client.forget)
ours = os.readlink(f"/proc/self/fd/{client._socket.fileno()}")
if (pid := os.fork()) == 0:
    held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]
    os._exit(3 if ours in held or client.send(Delivered("child", 1.0)) else 0)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
client.send(Delivered("parent", 1.0))
client.close()
sys.exit(code)
"""
    with FakeAgent(path) as agent:
        child = subprocess.Popen([sys.executable, "-c", code, str(path)])
        agent.welcome()
        assert agent.hear(Delivered).id == "parent"
        agent.hear(Bye)
        assert child.wait(TIMEOUT) == 0


def test_a_word_that_may_be_dropped_waits_for_nobody(path: Path) -> None:
    """An agent that reads nothing: the rest is dropped, what must be said still has room, and nobody hangs up."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(path))
        server.listen()
        it = Listening(path)
        it.client.start()
        agent, _ = server.accept()
        with agent:
            agent.sendall(encode(Welcome(1, os.getpid())))
            it.client.wait_answered(TIMEOUT)
            word = Position(1, detail="x" * 200)
            sent = next(number for number in range(10**6) if not it.client.send(word, droppable=True))
            assert sent > 10
            assert it.client.send(Delivered("n1", 1.0))
            assert it.client.guarded
            it.client.close()
