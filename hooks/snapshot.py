"""A copy of the state in host memory, from which a background checkpoint is written while training goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from ..providers.errors import CheckpointError
from .checkpoints.effort import Effort
from .format.leaf import Leaf
from .state.device import SideStreams, host_tensor
from .state.memory import available_memory
from .state.storage import copyable

#: Bytes that are copied between two looks at whether the save is still wanted.
_PIECE = 64 * 2**20
#: Host memory that it must leave to others, in bytes.
_LEAVE_FREE = 512 * 2**20


class Snapshot:
    """Used by the saving thread. Its memory is kept and reused."""

    def __init__(self) -> None:
        self._held: dict[str, torch.Tensor] = {}
        self._streams = SideStreams()
        self.available = available_memory

    def take(self, leaves: tuple[Leaf, ...], effort: Effort) -> tuple[Leaf, ...]:
        """The leaves as they stand, in host memory.

        Raises:
            Abandoned: called off.
            CheckpointError: it cannot hold them.
        """
        self._check_memory(leaves)
        wanted: dict[str, torch.Tensor] = {}
        for leaf in leaves:
            held = self._held.get(leaf.name)
            if held is None or held.shape != leaf.tensor.shape or held.dtype != leaf.tensor.dtype:
                held = host_tensor(leaf.tensor)
            wanted[leaf.name] = held
        self._held = wanted  # what is no longer part of the state is let go before anything is copied
        for leaf in leaves:
            with torch.no_grad(), self._streams.on(leaf.tensor.device):
                for into, part in _pieces(copyable(wanted[leaf.name]), copyable(leaf.tensor)):
                    effort.check()
                    into.copy_(part, non_blocking=True)
        self._streams.finish()
        return tuple(replace(leaf, tensor=wanted[leaf.name], still=True) for leaf in leaves)

    def _check_memory(self, leaves: tuple[Leaf, ...]) -> None:
        held = sum(tensor.nbytes for tensor in self._held.values())
        need = sum(leaf.tensor.nbytes for leaf in leaves) - held
        if need > 0 and (free := self.available()) < need + _LEAVE_FREE:
            raise CheckpointError(
                f"a background checkpoint needs {need >> 20} MiB of host memory for its copy and {free >> 20} MiB "
                "are free: give it a folder on a local disk with --stage DIR, switch it off with --every off, or use "
                "a machine with more memory"
            )


def _pieces(into: torch.Tensor, tensor: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    if tensor.nbytes <= _PIECE or not tensor.is_contiguous():
        yield into, tensor
        return
    count = _PIECE // tensor.itemsize
    yield from zip(into.reshape(-1).split(count), tensor.reshape(-1).split(count), strict=True)
