"""Parameters that each rank of the saved job had for itself, by one name, and in which they differed.

Replicas that nobody declares are alike, and it is all the same whose a rank takes. Stages of a pipeline that are named alike
are not: among as many ranks each has its own again, and among another number most would silently train somebody else's.
(Buffers of replicas may differ: each has its own statistics.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from torch import nn

from ..format.coverage import MergedTensor
from ..format.manifest import private_name
from .modules import Known

#: Parameters that a warning names.
_NAMED = 3


@runtime_checkable
class Named(Protocol):
    """A part that holds parameters."""

    def named(self) -> Mapping[int, Known]:
        """Each live tensor, by its id."""
        ...


def unlike(part: object, entries: Mapping[str, MergedTensor], saved: int, rank: int, world: int) -> str:
    """What to warn of, where so many ranks go on with what was saved by another number; or nothing.

    Args:
        entries: the checkpoint's tensors by name.
        saved: how many ranks have saved it.
        rank: who goes on, of `world`.
    """
    if saved == world or not isinstance(part, Named):
        return ""
    held = [each.name for each in part.named().values() if isinstance(each.tensor, nn.Parameter)]
    names = [name for name in held if _differs(name, entries, saved)]
    if not names:
        return ""
    few = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    return (
        f"{few} differed between the {saved} ranks that saved them, each its own, and rank {rank} of {world} goes on with those "
        f"of rank {rank % saved}: name a pipeline stage's layers by their places in the whole model, and wrap replicas"
    )


def _differs(name: str, entries: Mapping[str, MergedTensor], saved: int) -> bool:
    own = (entries.get(private_name(rank, name)) for rank in range(saved))
    return len({_said(each) for each in own if each is not None}) > 1


def _said(entry: MergedTensor) -> tuple[object, ...]:
    """Ranks that hold the same have cut it alike, for all of them go by shapes and sizes."""
    chunks = frozenset((chunk.offsets, chunk.sizes, chunk.crc32) for _, chunk in entry.chunks)
    return entry.dtype, entry.shape, chunks
