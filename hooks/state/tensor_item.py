"""A tensor of the state under the name that a checkpoint gives it: what the state hands over, and a writer writes."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Tier(enum.IntEnum):
    """What a tensor is worth when time is short. Objects are put in this order, and none holds two tiers."""

    #: Parameters, buffers, extras: with these a job goes on, if it must.
    WEIGHTS = 0
    #: Parameters that nobody trains: worth as much, and most likely in the store since the first checkpoint.
    FROZEN = 1
    #: What optimizers keep.
    MOMENTS = 2


@dataclass(frozen=True, slots=True)
class StateTensor:
    """A tensor of the state, held where it lies."""

    #: Its name in the checkpoint: "model/blocks.0.attn.weight".
    name: str
    #: An alias of the live storage (or a copy that nobody else writes to).
    tensor: torch.Tensor
    #: Stands still while the gate is shut: a copy of ours, or changed only by a hooked optimizer's `step()`.
    #: What may be changed by anybody (an EMA, a frozen weight) is checked a second time after it was read.
    still: bool = False
    tier: Tier = Tier.WEIGHTS
    #: Where it lies in the tensor that all ranks hold together, and that tensor's shape; None for one that is whole here.
    offsets: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    #: The ranks that hold these same bytes, in order: one of them writes each object. A rank that is not among them writes
    #: nothing of it (DDP's buffers: the group's first rank has them for all). Empty for what is this rank's alone.
    holders: tuple[int, ...] = ()
    #: All ranks that it lies on, as far as anybody says: those of its mesh, or of its wrapper's process group. Empty for what
    #: bears this rank's own name.
    group: tuple[int, ...] = ()
