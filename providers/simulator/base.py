"""What every simulated service is: a server on loopback that says its truth, spoilt by the faults that are on.

A cloud adds its truth, and the verbs of what can happen to one of its machines.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from ..clock import Clock, SystemClock
from .faults import Faults, Spoil
from .http_server import HttpRequest, LoopbackServer, Reply, ServedRequest
from .scenario import Verb, count, seconds


class Simulator(ABC):
    """A metadata service on loopback. A context manager: listens inside, is gone outside.

    Args:
        kinds: every fault that this service has, by name.
        clock: dates what happens; a clock by hand makes everything stand still.
        host: 127.0.0.1 or ::1.
        port: 0 picks a free one.
        keep_alive: True serves many requests on one connection.
        tell: is told what happens, in one line each.
    """

    #: What `spotguard run` needs, beside provider and endpoint, to look at this one.
    try_with = ""

    def __init__(
        self,
        kinds: Mapping[str, Spoil],
        clock: Clock | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        keep_alive: bool = True,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.clock = clock or SystemClock()
        self.endpoint = ""
        #: Monotonic seconds at which the machine goes, once there is a notice.
        self.deadline: float | None = None
        self._tell = tell
        self._server = LoopbackServer(self._answer, self.clock, host=host, port=port, keep_alive=keep_alive)
        self._faults = Faults(kinds)

    @abstractmethod
    def _truth(self, request: HttpRequest) -> Reply:
        """What the service answers on a good day. Called on the connections' threads, several at a time."""

    # --- life ---------------------------------------------------------------------------------------------

    def start(self) -> str:
        """Listen; returns the endpoint, "http://127.0.0.1:PORT"."""
        self.endpoint = self._server.start()
        return self.endpoint

    def adopt(self, listening: socket.socket) -> None:
        """Serve on a socket that listens already, wherever that is, in place of host and port. Before `start`."""
        self._server.adopt(listening)

    def stop(self) -> None:
        self._server.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- what goes wrong ------------------------------------------------------------------------------------

    def fault(
        self, kind: str, *, seconds: float | None = None, count: int | None = None, path: str = ""
    ) -> None:
        """Misbehave, for `seconds` or for `count` requests or until `clear`.

        Args:
            path: only where this is a part of the request's path.
        """
        self._faults.add(kind, self.clock.monotonic(), seconds=seconds, count=count, path=path)
        where = f" at {path}" if path else ""
        self._tell(f"fault: {kind}{where}" + (f" for {seconds:g} s" if seconds is not None else ""))

    def clear(self) -> None:
        """Take back every fault, and what a cloud adds: whatever was said of an end."""
        self._faults.clear()
        self.deadline = None
        self._tell("all clear")

    def _answer(self, request: HttpRequest) -> Reply:
        return self._faults.spoil(request, self._truth(request), self.clock.monotonic())

    # --- what clients did -----------------------------------------------------------------------------------

    @property
    def requests(self) -> tuple[ServedRequest, ...]:
        """The newest requests, oldest first."""
        return self._server.seen

    def count(self, method: str = "", path: str = "", status: int | None = None) -> int:
        """How many requests were of this method, path and status; what is not given is not looked at."""
        return sum(map(_wanted(method, path, status), self.requests))

    def wait_for(
        self, count: int = 1, method: str = "", path: str = "", status: int | None = None, timeout: float = 5
    ) -> bool:
        """Block until there were `count` such requests; False when `timeout` real seconds went by first."""
        return self._server.wait_for(_wanted(method, path, status), count, timeout)


def common_verbs(kinds: Mapping[str, Spoil]) -> dict[str, Verb[Any]]:
    """What a script may say of every service; a cloud's own verbs stand before these."""
    settings: dict[str, Callable[[str], Any]] = {"for": seconds, "count": count, "path": str}
    return {
        "fault": Verb(_fault, words=sorted(kinds), settings=settings),
        "clear": Verb(lambda simulator: simulator.clear()),
    }


def _fault(simulator: Simulator, kind: str, **settings: Any) -> None:
    # `for` is a word of Python and no parameter's name.
    left, path = settings.get("count"), settings.get("path", "")
    simulator.fault(kind, seconds=settings.get("for"), count=left, path=path)


def _wanted(method: str, path: str, status: int | None) -> Callable[[ServedRequest], bool]:
    return lambda seen: (
        (not method or seen.method == method)
        and (not path or seen.path.endswith(path))
        and (status is None or seen.status == status)
    )
