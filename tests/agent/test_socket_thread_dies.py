"""The thread behind the socket outlives whatever the kernel says at an accept."""

from __future__ import annotations

import errno
import selectors
import socket
import threading
from typing import Any

import pytest

from tests.fakes.hook import FakeHook
from tests.fakes.serving import Events, Serving, is_fine, registered
from tests.fakes.talk import TIMEOUT


class Kernel:
    """One that refuses to watch the next socket when it is told to: `fs.epoll.max_user_watches` is spent (epoll_ctl(2))."""

    def __init__(self) -> None:
        self.refuses = False
        #: Set when what follows a refusal has begun: the next wait, or the end of the thread.
        self.after = threading.Event()
        self.died = ""

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
        if self._kernel.refuses and isinstance(fileobj, socket.socket):
            self._kernel.refuses, self._refused = False, True
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._refused:
            self._kernel.after.set()
        return super().select(timeout)


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="An OSError of epoll at an accept is caught by nobody and ends the agent's socket thread.",
)
def test_socket_thread_dies(serve: Serving, events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that cannot be watched is closed; those before it and after it are served."""
    kernel = Kernel()
    monkeypatch.setattr(selectors, "DefaultSelector", lambda: Refusing(kernel))
    monkeypatch.setattr(threading, "excepthook", kernel.says_so)
    server = serve()
    before, session = registered(server, events)
    kernel.refuses = True
    with before, FakeHook(server.path) as refused:
        assert kernel.after.wait(TIMEOUT)
        if kernel.died:  # nobody else closes them then, and a later test would be blamed for it
            for connection in server._connections.values():
                connection.release()
        assert kernel.died == ""
        assert refused.hears_the_end()
        is_fine(server, before, session, events)
        after, newer = registered(server, events)
        with after:
            is_fine(server, after, newer, events)
