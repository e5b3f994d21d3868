"""A thread that waits for the interpreter's lock gets it from a training thread that releases it for a moment only."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotguard.hooks.ipc import interpreter_lock
from spotguard.hooks.ipc.interpreter_lock import Hurry
from spotguard.hooks.ipc.protocol import Preempt
from tests.fakes.agent import FakeAgent
from tests.fakes.talk import TIMEOUT
from tests.hooks.ipc.test_client import listening, path

__all__ = ["path"]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Whatever tests before have left, and what these leave."""
    handler, interval = signal.getsignal(signal.SIGURG), sys.getswitchinterval()
    signal.signal(signal.SIGURG, signal.SIG_DFL)
    sys.setswitchinterval(0.005)
    try:
        yield
    finally:
        signal.signal(signal.SIGURG, handler)
        sys.setswitchinterval(interval)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    with here, there:
        yield here, there


def test_a_message_has_the_training_thread_release_the_lock(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    here, there = ends
    interpreter_lock.stand_aside()
    interpreter_lock.announce(here)
    reading, writing = os.pipe2(os.O_NONBLOCK)
    before = signal.set_wakeup_fd(writing)
    try:
        there.send(b"x")
        assert select.select([reading], [], [], TIMEOUT)[0]
        assert os.read(reading, 10) == bytes([signal.SIGURG])
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)


def test_the_listener_ends_the_hurry_of_a_message(path: Path) -> None:
    interpreter_lock.stand_aside()
    with FakeAgent(path) as agent, listening(path) as it:
        agent.welcome()
        agent.say(Preempt("n1", 30.0, 3.0, "terminate", "aws"))
        it.wait(1)
        assert it.heard[0] == Preempt("n1", 30.0, 3.0, "terminate", "aws")
    assert sys.getswitchinterval() == 0.005


def test_a_program_that_handles_the_signal_keeps_its_handler(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    theirs: list[int] = []
    signal.signal(signal.SIGURG, lambda signum, frame: theirs.append(signum))
    interpreter_lock.stand_aside()
    interpreter_lock.announce(ends[0])
    ends[1].send(b"x")
    signal.raise_signal(signal.SIGURG)
    assert theirs == [signal.SIGURG]
    assert sys.getswitchinterval() == 0.005


def test_off_the_main_thread_no_handler_is_set() -> None:
    thread = threading.Thread(target=interpreter_lock.stand_aside)
    thread.start()
    thread.join(TIMEOUT)
    assert signal.getsignal(signal.SIGURG) == signal.SIG_DFL


def test_the_last_hurry_that_ends_brings_the_usual_interval_back() -> None:
    """Each counts once, however often it begins and ends: two callbacks run, two guards have a notice."""
    one, other = Hurry(), Hurry()
    for hurry in (one, other, one):
        hurry.begin()
    one.end()
    one.end()
    assert sys.getswitchinterval() < 0.005
    other.end()
    assert sys.getswitchinterval() == 0.005


def test_a_forked_child_is_in_no_hurry() -> None:
    Hurry().begin()
    with interpreter_lock._lock:  # by a thread that the child has not
        interpreter_lock.forget()
    assert sys.getswitchinterval() == 0.005
