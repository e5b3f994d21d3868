"""A tensor of the state under its name in a checkpoint. `state` collects such tensors, and a save writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..checkpoint.tier import Tier

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A tensor of the state and its place in the checkpoint. The tensor is not copied."""

    #: The name in the checkpoint, such as "model/blocks.0.attn.weight".
    name: str
    #: An alias of the live storage, or a copy that only spotguard writes to.
    tensor: torch.Tensor
    #: Whether the bytes cannot change while the gate is shut. This holds for a copy of ours, and for a tensor that
    #: only the `step()` of a hooked optimizer changes. Any code may change the others (an EMA, a frozen weight), so a
    #: save checks them again after it has read them.
    still: bool = False
    tier: Tier = Tier.WEIGHTS
    #: The offsets of this shard in the global tensor, and the shape of the global tensor. None if this rank holds the
    #: whole tensor.
    offsets: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    #: The ranks that hold these same bytes, in order. One of them writes each object. A rank outside `holders` writes nothing
    #: of the tensor: for DDP's buffers the group's first rank writes for all. Empty if the tensor is this rank's alone.
    holders: tuple[int, ...] = ()
    #: All ranks that hold a part of the tensor, as far as its mesh or its wrapper's process group declares them.
    #: Empty if the name belongs to this rank alone.
    group: tuple[int, ...] = ()

    def read_from(self, by_address: Mapping[int, torch.Tensor]) -> StateTensor:
        """Return it with the tensor that stands for its memory, if there is one.

        Args:
            by_address: copies of ours, by the address of the memory that they stand for.
        """
        copy = by_address.get(self.tensor.data_ptr()) if self.tensor.is_cpu and self.tensor.numel() else None
        return self if copy is None else replace(self, tensor=copy.view(self.tensor.dtype), still=True)
