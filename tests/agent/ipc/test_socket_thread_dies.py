"""The thread behind the socket outlives whatever the kernel says at an accept."""

from __future__ import annotations

import errno
import os
import random
import selectors
import signal
import socket
import threading
from typing import Any

import pytest

from spotguard.agent.core.machine import Machine
from spotguard.agent.core.state import Policy
from spotguard.agent.events import Closed, Signalled
from spotguard.agent.ipc.server import Server
from spotguard.agent.loop import Agent
from spotguard.agent.sources.poller import Poller
from spotguard.agent.telemetry.status import AgentFacts
from spotguard.agent.telemetry.systemd import Manager
from spotguard.hooks.ipc.protocol import Position, Register
from spotguard.providers.clock import SystemClock
from tests.fakes.hook import FakeHook
from tests.fakes.serving import Events, Serving, is_fine, registered
from tests.fakes.source import FakeSource
from tests.fakes.talk import TIMEOUT


class Kernel:
    """One that refuses to watch the next socket when it is told to: `fs.epoll.max_user_watches` is spent (epoll_ctl(2))."""

    def __init__(self) -> None:
        #: The type of what it does not watch: a socket, or a number, which is a process's.
        self.refuses: type | tuple[()] = ()
        #: Set when what follows a refusal has begun: the next wait, or the end of the thread.
        self.after = threading.Event()
        self.died = ""
        self.broken = False

    def says_so(self, args: threading.ExceptHookArgs) -> None:
        """In the place of `threading.excepthook`."""
        self.died = str(args.exc_value)
        self.after.set()


class Refusing(selectors.EpollSelector):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self._kernel = kernel
        self._refused = False

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if isinstance(fileobj, self._kernel.refuses):
            self._kernel.refuses, self._refused = (), True
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._kernel.broken:
            raise OSError(errno.EBADF, "Bad file descriptor")
        if self._refused:
            self._kernel.after.set()
        return super().select(timeout)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel()
    monkeypatch.setattr(selectors, "DefaultSelector", lambda: Refusing(made))
    monkeypatch.setattr(threading, "excepthook", made.says_so)
    return made


def test_socket_thread_dies(serve: Serving, events: Events, kernel: Kernel) -> None:
    """The connection that cannot be watched is closed; those before it and after it are served."""
    server = serve()
    before, session = registered(server, events)
    kernel.refuses = socket.socket
    with before, FakeHook(server.path) as refused:
        assert kernel.after.wait(TIMEOUT)
        assert kernel.died == ""
        assert refused.hears_the_end()
        is_fine(server, before, session, events)
        after, newer = registered(server, events)
        with after:
            is_fine(server, after, newer, events)


def test_a_process_that_cannot_be_watched_costs_nobody_else(
    serve: Serving, events: Events, kernel: Kernel
) -> None:
    """Neither when it registers, nor when it has lost its socket: it is not taken for dead then."""
    server = serve()
    before, session = registered(server, events)
    kernel.refuses = int
    with before, FakeHook(server.path) as refused:
        refused.say(Register(os.getpid(), "other", "train.py", "file:///s"))
        assert refused.hears_the_end()
        lost, number = registered(server, events)
        kernel.refuses = int
        lost.close()
        assert events.next(Closed, lambda e: e.session == number).alive
        is_fine(server, before, session, events)
    assert kernel.died == ""


class Fed(Manager):
    """Counts the signs of life."""

    count = 0

    def ready(self, now: float) -> None:
        """Once, whatever comes of it."""

    def live(self, now: float) -> None:
        self.count += 1


def signs_of_life(server: Server, events: Events, *watches: Poller) -> int:
    """Of an agent that turns until it is told to end."""
    manager = Fed("")
    events.queue.put(Signalled(signal.SIGTERM))
    facts = AgentFacts("run", os.getpid(), "a.sock", True, 0.0)
    machine = Machine(Policy(command=False))
    agent = Agent(machine, server, SystemClock(), events.queue, facts, watches=watches, manager=manager)
    assert agent.run() == 0
    return manager.count


@pytest.mark.parametrize("broken", [False, True], ids=["there", "gone"])
def test_the_watchdog_speaks_for_the_socket_too(
    broken: bool, serve: Serving, events: Events, kernel: Kernel
) -> None:
    """An agent whose loop turns, and who hears nobody, is started again by systemd."""
    server = serve()
    if broken:
        kernel.broken = True
        server.send(1, Position(1))  # wakes it
        assert kernel.after.wait(TIMEOUT)
        server._thread.join(TIMEOUT)
    assert bool(signs_of_life(server, events)) is not broken


class Promised(FakeSource):
    """Its watcher reads `told` after each look."""

    broken = False

    @property
    def told(self) -> float | None:
        if self.broken:
            raise MemoryError("a mistake outside the look")
        return None


@pytest.mark.parametrize("broken", [False, True], ids=["there", "gone"])
def test_the_watchdog_speaks_for_who_looks_for_notices_too(
    broken: bool, serve: Serving, events: Events, kernel: Kernel
) -> None:
    """An agent that is blind because a thread of its own died is started again too."""
    source = Promised()
    source.broken = broken
    poller = Poller(source, events.queue.put, SystemClock(), random.Random(1))
    poller.start()
    if broken:
        assert kernel.after.wait(TIMEOUT)
        poller._thread.join(TIMEOUT)
        assert not poller.alive
    assert bool(signs_of_life(serve(), events, poller)) is not broken
    poller.stop(TIMEOUT)
    assert poller.alive
