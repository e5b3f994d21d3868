"""The second store of a job: which rank serves it, how the others reach it, and the one over TCP beside torch's own store."""

from __future__ import annotations

import logging
import resource
import socket
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, cast

from ....providers.clock import Clock
from ...ipc.threads import StandingThread
from ..protocol import Keys
from .connection import JobStore, StoreSilent, within
from .store_client import StoreClient, nothing

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

log = logging.getLogger("spotguard")

#: Seconds in which a rank must reach the second store. A firewall that drops packets costs every start as much.
_REACHED = 10.0
#: Seconds of them for the connection itself.
_CONNECTED = 5.0
#: Seconds for the threads of a client that nobody takes.
_LEFT_BEHIND = 0.2
#: Files that a process which serves the second store keeps free for training, and the connections of each rank to it.
_SPARE_FILES, _CONNECTIONS = 512, 4


class SecondStore(Protocol):
    """The maker of the second store, on each rank. Neither method raises."""

    def serve(self) -> str:
        """Serve a store from this process, and return its place for `reach`; "" if that failed. One rank calls it."""
        ...

    def reach(self, place: str) -> JobStore | None:
        """Return a connection to the served store; None if this rank cannot reach it. All ranks call it."""
        ...


class _Found:
    """A connection that a thread makes and another one takes, unless that one has waited long enough: then it is ended."""

    def __init__(self) -> None:
        self.there = threading.Event()
        self._lock = threading.Lock()
        self._client: StoreClient | None = None
        self._taken = False

    def put(self, client: StoreClient | None) -> None:
        with self._lock:
            self._client = None if self._taken else client
            late = client if self._taken else None
        self.there.set()
        if late is not None:
            late.end(_LEFT_BEHIND)

    def take(self) -> StoreClient | None:
        with self._lock:
            self._taken = True
            return self._client


def second_rank(machines: Sequence[str]) -> int:
    """Return the rank that serves the second store: the first one on another machine than rank 0, or else rank 1."""
    return next((rank for rank, machine in enumerate(machines) if machine != machines[0]), 1)


def reach(second: SecondStore, place: str, keys: Keys, clock: Clock) -> StoreClient | None:
    """Connect to the second store, on a thread: c10d waits without end for an endpoint that accepts and never answers.

    Args:
        second: makes the connection.
        place: the second store's place, from `serve`.
        keys: the keys of this job in that store.
        clock: the time.

    Returns:
        The client of that store; None if this rank cannot reach it in time.
    """
    left, found = within(clock, _REACHED), _Found()

    def run() -> None:
        client = None
        if (store := second.reach(place)) is not None:
            client = StoreClient(store, keys, clock, "-2")
            try:
                for line in client.connections:
                    line.say(nothing(), left)
            except StoreSilent as why:
                log.debug("the second store at %s: %s", place, why)
                client.end(_LEFT_BEHIND)
                client = None
        found.put(client)

    thread = StandingThread("spotguard-reach")
    thread.give(run)
    thread.end()
    clock.wait(found.there, left())
    return found.take()


class BesideStore:
    """The second store of a job whose own store is over TCP; implements `SecondStore`.

    It listens at the address by which its process reaches the job's own store, because the other ranks are there, too.

    Args:
        first: the job's own store.
        world: number of ranks.
    """

    def __init__(self, first: TCPStore, world: int) -> None:
        self._first = first
        self._world = world
        self._served: TCPStore | None = None

    def serve(self) -> str:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        if why := _too_few_files(_CONNECTIONS * self._world + _SPARE_FILES):
            log.debug("no second store: %s", why)
            return ""
        try:
            address = _own_address(self._first.host, self._first.port)
            # A socket of ours, because torch's own would listen at all addresses.
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listening = socket.create_server((address, 0), family=family, backlog=self._world)
            port = listening.getsockname()[1]
            self._served = TCPStore(
                address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
            )
        except (OSError, RuntimeError) as error:
            log.debug("no second store: %s", error)
            return ""
        return f"{address} {port}"

    def reach(self, place: str) -> JobStore | None:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        if self._served is not None:
            return cast(JobStore, self._served)
        address, port = place.split()
        try:
            # Tried before torch does, which writes many lines to standard error if it fails.
            socket.create_connection((address, int(port)), _CONNECTED).close()
            store = TCPStore(
                address,
                int(port),
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=_CONNECTED),
            )
        except (OSError, RuntimeError) as error:
            log.debug("no second store at %s: %s", place, error)
            return None
        return cast(JobStore, store)


def _too_few_files(needed: int) -> str:
    """Have this process open as many files as needed, and return why it may not; "" if it may.

    Training opens files long after the ranks have connected, and would fail there.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return ""
    if hard != resource.RLIM_INFINITY and hard < needed:
        return f"this process may open {hard} files, and the connections of all ranks need {needed}"
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (OSError, ValueError) as error:
        return f"this process may open {soft} files, and not {needed}: {error}"
    return ""


def _own_address(host: str, port: int) -> str:
    """Return the address of this machine from which it reaches another one. Nothing is sent.

    Raises:
        OSError: there is none.
    """
    family, _, _, _, at = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(at)
        return str(probe.getsockname()[0])
