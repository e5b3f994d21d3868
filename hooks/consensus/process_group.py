"""The channel of a job with a torch process group."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from ...providers.clock import Clock
from ...providers.errors import UsageError
from .channel import Channel
from .stores.connection import JobStore
from .stores.second import BesideStore

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

log = logging.getLogger("spotguard")


def join(machine: str, clock: Clock, world: str = "1", *, served: bool = False) -> Channel | None:
    """Meet the other ranks of the default process group, and return the channel to them; None if this process is alone.

    The training threads of all ranks call it at once, and it makes one small collective.

    Args:
        machine: a token of this machine, the same for all ranks that run on it.
        clock: the time.
        world: the number of processes as their launcher has set it.
        served: whether the launcher serves the job's store. Else the first rank's process does, unless it is a file.

    Raises:
        UsageError: there are other ranks and no process group yet, or the ranks run different versions.
        StoreSilent: not all ranks have come.
    """
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        if world != "1":
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
        hosts=rank == 0 and _hosted(store, served),
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


def _hosted(store: object, served: bool) -> bool:
    """Return whether the first rank's process serves the store."""
    return _over_tcp(store) is not None and not served
