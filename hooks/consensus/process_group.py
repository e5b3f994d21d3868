"""The channel of a job whose process group torch has made."""

from __future__ import annotations

import os
from typing import Any, cast

from ...providers.clock import Clock
from ...providers.errors import UsageError
from .channel import Channel
from .store import JobStore


def join(machine: str, clock: Clock) -> Channel | None:
    """Meet the other ranks of the default process group; None where this process is alone.

    On the training thread, of all ranks at once: one small collective is made.

    Args:
        machine: a token of this machine, the same for all ranks that run on it.

    Raises:
        UsageError: there are other ranks, and no process group yet; or they speak another version.
        Silent: not all ranks have come.
    """
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        if (world := os.environ.get("WORLD_SIZE", "1")) not in ("", "1"):
            raise UsageError(
                f"WORLD_SIZE is {world}, and there is no process group: "
                "call torch.distributed.init_process_group() before spotguard.register()"
            )
        return None
    if distributed.get_world_size() == 1:
        return None
    from torch.distributed.distributed_c10d import _get_default_store

    store = _get_default_store()
    rank, world_size = distributed.get_rank(), distributed.get_world_size()
    return Channel.join(
        cast(JobStore, store),
        rank,
        world_size,
        machine,
        clock,
        meet=_meet,
        hosts=rank == 0 and _hosted(store),
    )


def _meet(value: bytes | None) -> bytes:
    from torch import distributed

    values: list[Any] = [value]
    distributed.broadcast_object_list(values, src=0)
    return bytes(values[0])


def _hosted(store: object) -> bool:
    """Whether the first rank's process serves the store: so it is unless its launcher does, which says so
    (`torch.distributed.rendezvous._torchelastic_use_agent_store`)."""
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return isinstance(store, TCPStore) and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
