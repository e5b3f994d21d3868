"""Checks that replicas agree, before the ranks that hold them divide the writing. Pure functions of state tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b

import torch

from ...checkpoint.format.crc import crc32
from ..memory_access import copyable
from ..state_tensor import StateTensor

#: Bytes read between two calls of `look`, which can end the reading.
_PIECE = 64 * 2**20


def fingerprint(state_tensors: Iterable[StateTensor]) -> dict[tuple[int, ...], str]:
    """Return, by the ranks that hold the same tensors, a hash of those tensors' names, types, shapes and offsets, in order.

    The hash covers no bytes of the tensors. It must be equal on all of these ranks; otherwise they would divide the
    writing in different ways.
    """
    lines: dict[tuple[int, ...], list[str]] = {}
    for state_tensor in state_tensors:
        if len(state_tensor.holders) > 1:
            description = (
                state_tensor.name,
                str(state_tensor.tensor.dtype),
                state_tensor.shape,
                state_tensor.offsets,
                tuple(state_tensor.tensor.shape),
                int(state_tensor.tier),
            )
            lines.setdefault(state_tensor.holders, []).append(repr(description))
    return {
        holders: blake2b("\n".join(descriptions).encode(), digest_size=16).hexdigest()
        for holders, descriptions in sorted(lines.items())
    }


def alone(state_tensors: Iterable[StateTensor], rank: int) -> bool:
    """Return whether this rank has tensors that no other rank has: if the rank dies, they are lost.

    (Generators and other extras belong to each rank alone, and are always lost with it.)
    """
    return any(
        state_tensor.tensor.numel() and state_tensor.holders in ((), (rank,))
        for state_tensor in state_tensors
    )


def digests(
    state_tensors: Iterable[StateTensor], rank: int, look: Callable[[], object] = int
) -> dict[str, int]:
    """Return the CRC32 of each tensor that other ranks hold too, by its name and its offsets. This reads every byte of them.

    Args:
        state_tensors: the state tensors, or copies of them.
        rank: this process's rank.
        look: called before each 64 MiB. If it raises, the reading ends with its exception.
    """
    return {
        state_tensor.name
        if state_tensor.offsets is None
        else f"{state_tensor.name} at {list(state_tensor.offsets)}": crc_of(state_tensor.tensor, look)
        for state_tensor in state_tensors
        if len(state_tensor.holders) > 1 and rank in state_tensor.holders
    }


def drifted(digests: Sequence[Mapping[str, int]]) -> list[str]:
    """Return, in order, the tensors that replicas on several ranks should share and that differ.

    Args:
        digests: the result of `digests` on each rank.
    """
    first: dict[str, int] = {}
    differing: set[str] = set()
    for of_rank in digests:
        differing |= {name for name, digest in of_rank.items() if first.setdefault(name, digest) != digest}
    return sorted(differing)


def crc_of(tensor: torch.Tensor, look: Callable[[], object] = int) -> int:
    """Return the CRC32 of all local bytes of a tensor. `look` has the same meaning as in `digests`."""
    flat = copyable(tensor.detach()).cpu().contiguous().reshape(-1).view(torch.uint8)
    crc = 0
    for piece in flat.split(_PIECE):
        look()
        crc = crc32(piece.numpy().data, crc)
    return crc
