"""The base of every simulated service: a loopback server whose correct replies are spoilt by the active faults.

A cloud's subclass adds the correct replies, and a method for each event that can happen to one of its machines.
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
    """A metadata service on loopback. A context manager that listens from its start to its end.

    Args:
        kinds: every fault that this service has, by name.
        clock: dates the events; with a manual clock everything stands still.
        host: 127.0.0.1 or ::1.
        port: 0 picks a free port.
        keep_alive: whether a connection serves more than one request.
        tell: takes one line for each event.
    """

    #: Further options that `spotguard run` needs, besides provider and endpoint, to watch this simulator.
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
        #: Monotonic seconds at which the machine ends, once there is a notice.
        self.deadline: float | None = None
        self._tell = tell
        self._server = LoopbackServer(self._answer, self.clock, host=host, port=port, keep_alive=keep_alive)
        self._faults = Faults(kinds)

    @abstractmethod
    def _truth(self, request: HttpRequest) -> Reply:
        """Return the correct reply. Several connection threads may call it at the same time."""

    # --- life ---------------------------------------------------------------------------------------------

    def start(self) -> str:
        """Listen, and return the endpoint, "http://127.0.0.1:PORT"."""
        self.endpoint = self._server.start()
        return self.endpoint

    def adopt(self, listening: socket.socket) -> None:
        """Serve on a socket that listens already, instead of host and port. Call it before `start`."""
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

    # --- faults ---------------------------------------------------------------------------------------------

    def fault(
        self, kind: str, *, seconds: float | None = None, count: int | None = None, path: str = ""
    ) -> None:
        """Switch a fault on.

        Args:
            kind: the fault's name.
            seconds: its duration; None until `clear`.
            count: the number of requests that it spoils; None for all.
            path: spoil only requests whose path contains this text.

        Raises:
            UsageError: this service has no such fault.
        """
        self._faults.add(kind, self.clock.monotonic(), seconds=seconds, count=count, path=path)
        where = f" at {path}" if path else ""
        self._tell(f"fault: {kind}{where}" + (f" for {seconds:g} s" if seconds is not None else ""))

    def clear(self) -> None:
        """Take back every fault and the deadline. A cloud's subclass also takes back its notices."""
        self._faults.clear()
        self.deadline = None
        self._tell("all clear")

    def _answer(self, request: HttpRequest) -> Reply:
        return self._faults.spoil(request, self._truth(request), self.clock.monotonic())

    # --- the clients' requests ------------------------------------------------------------------------------

    @property
    def requests(self) -> tuple[ServedRequest, ...]:
        """Return the newest requests, oldest first."""
        return self._server.seen

    def count(self, method: str = "", path: str = "", status: int | None = None) -> int:
        """Count the requests with this method, end of path and status. An argument left out matches every request."""
        return sum(map(_wanted(method, path, status), self.requests))

    def wait_for(
        self, count: int = 1, method: str = "", path: str = "", status: int | None = None, timeout: float = 5
    ) -> bool:
        """Block until there were `count` such requests. Return False after `timeout` real seconds without them."""
        return self._server.wait_for(_wanted(method, path, status), count, timeout)


def common_verbs(kinds: Mapping[str, Spoil]) -> dict[str, Verb[Any]]:
    """Return the script verbs that every service has. A cloud's own verbs come before them."""
    settings: dict[str, Callable[[str], Any]] = {"for": seconds, "count": count, "path": str}
    return {
        "fault": Verb(_fault, words=sorted(kinds), settings=settings),
        "clear": Verb(lambda simulator: simulator.clear()),
    }


def _fault(simulator: Simulator, kind: str, **settings: Any) -> None:
    # `for` is a Python keyword and cannot name a parameter.
    left, path = settings.get("count"), settings.get("path", "")
    simulator.fault(kind, seconds=settings.get("for"), count=left, path=path)


def _wanted(method: str, path: str, status: int | None) -> Callable[[ServedRequest], bool]:
    return lambda seen: (
        (not method or seen.method == method)
        and (not path or seen.path.endswith(path))
        and (status is None or seen.status == status)
    )
