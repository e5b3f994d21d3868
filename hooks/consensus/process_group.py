"""The channel of a job with a torch process group."""

from __future__ import annotations

import logging
import os
import resource
import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from ...providers.clock import Clock
from ...providers.errors import UsageError
from .channel import Channel
from .store import JobStore

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

log = logging.getLogger("spotguard")

#: Files that a process which serves the second store keeps free for training, and the connections of each rank to it.
_SPARE_FILES, _CONNECTIONS = 512, 4
#: Seconds in which a rank must reach the second store. A firewall that drops packets costs every start as much.
_REACHED = 5.0


def join(machine: str, clock: Clock) -> Channel | None:
    """Meet the other ranks of the default process group, and return the channel to them; None if this process is alone.

    The training threads of all ranks call it at once, and it makes one small collective.

    Args:
        machine: a token of this machine, the same for all ranks that run on it.
        clock: the time.

    Raises:
        UsageError: there are other ranks and no process group yet, or the ranks run different versions.
        StoreSilent: not all ranks have come.
    """
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        if (world := os.environ.get("WORLD_SIZE", "1")) not in ("", "1"):
            raise UsageError(
                f"WORLD_SIZE is {world}, but there is no process group: call "
                "torch.distributed.init_process_group() before spotguard.register() [SG403]"
            )
        return None
    if distributed.get_world_size() == 1:
        return None
    from torch.distributed.distributed_c10d import _get_default_store

    store = _get_default_store()
    _check_connections(store)
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    return Channel.join(
        cast(JobStore, store),
        rank,
        world_size,
        machine,
        clock,
        meet=_meet,
        hosts=rank == 0 and _hosted(store),
        second=None if (tcp := _over_tcp(store)) is None else BesideStore(tcp, world_size),
    )


def _meet(value: bytes | None) -> bytes:
    from torch import distributed

    values: list[Any] = [value]
    distributed.broadcast_object_list(values, src=0)
    return bytes(values[0])


def _check_connections(store: object) -> None:
    """Refuse a store over TCP that gives a thread no connection of its own: a waiting thread would block all others.

    Raises:
        UsageError: this torch is too old for jobs of several ranks.
    """
    if not hasattr(store, "clone") and _over_tcp(store) is not None:
        from torch import __version__

        raise UsageError(
            f"torch {__version__}: a job of several ranks needs torch 2.8 or newer, in which each thread gets a "
            "connection of its own to the job's store [SG419]"
        )


def _over_tcp(store: object) -> TCPStore | None:
    """Return the store below its prefixes; None if it is in memory or in a file."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store if isinstance(store, TCPStore) else None


def _hosted(store: object) -> bool:
    """Return whether the first rank's process serves the store.

    It does, unless its launcher serves the store and has set the variable for that
    (`torch.distributed.rendezvous._torchelastic_use_agent_store`).
    """
    return _over_tcp(store) is not None and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)


class BesideStore:
    """The second store of a job whose own store is over TCP; implements `channel.SecondStore`.

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
            socket.create_connection((address, int(port)), _REACHED).close()
            store = TCPStore(
                address,
                int(port),
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=_REACHED),
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
