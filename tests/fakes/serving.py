"""A server for a test to talk to, and what it posts."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from spotguard.agent.events import Event, Heard, Opened
from spotguard.agent.ipc.connection import Limits
from spotguard.agent.ipc.server import Server
from spotguard.hooks.ipc.protocol import Delivered, Preempt
from spotguard.providers.clock import SystemClock
from tests.fakes.hook import FakeHook
from tests.fakes.talk import TIMEOUT

T = TypeVar("T", bound=Event)
Serve = Callable[..., Server]

#: Short, so that a test need not wait; long enough for a slow machine's honest peer.
QUICK = Limits(hello=0.3, stall=0.3, blocked=0.3)


class Events:
    """What the server posts, waited for by kind."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.kept: list[Event] = []

    def next(self, kind: type[T], where: Callable[[T], bool] = lambda event: True) -> T:
        for at, event in enumerate(self.kept):
            if isinstance(event, kind) and where(event):
                del self.kept[at]
                return event
        while True:
            event = self.queue.get(timeout=TIMEOUT)
            if isinstance(event, kind) and where(event):
                return event
            self.kept.append(event)

    def drain(self) -> list[Event]:
        with contextlib.suppress(queue.Empty):
            while True:
                self.kept.append(self.queue.get_nowait())
        return self.kept


class Serving:
    """Servers of one test, closed at its end."""

    def __init__(self, folder: Path, events: Events) -> None:
        self._folder = folder
        self._events = events
        self._stack = contextlib.ExitStack()

    def __call__(self, limits: Limits | None = None, *, service: bool = False) -> Server:
        path = self._folder / "a.sock"
        server = Server(path, self._events.queue.put, SystemClock(), service=service, limits=limits)
        self._stack.callback(server.close)
        server.start()
        return server

    def close(self) -> None:
        self._stack.close()


def is_fine(server: Server, hook: FakeHook, session: int, events: Events) -> None:
    """The registered one is heard, and hears."""
    hook.say(Delivered("still here", 1.0))
    heard = events.next(Heard, lambda e: e.session == session and isinstance(e.message, Delivered))
    assert heard.message == Delivered("still here", 1.0)
    server.send(session, Preempt("p", 1.0, 0.5, "terminate", "test"))
    assert hook.hear(Preempt).id == "p"


def registered(server: Server, events: Events) -> tuple[FakeHook, int]:
    hook = FakeHook.registered(server.path)
    return hook, events.next(Opened).session
