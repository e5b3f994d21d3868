"""What ranks that hold the same must agree on before they write it in turns: that it is the same. Pure, of leaves alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b

import torch

from ...checkpoint.format.crc import crc32
from ..memory_access import copyable
from ..tensor_item import StateTensor

#: Bytes that are read between two looks at whether they are still wanted.
_PIECE = 64 * 2**20


def fingerprint(leaves: Iterable[StateTensor]) -> dict[tuple[int, ...], str]:
    """By the ranks that hold the same: a hash over what that is (names, types, shapes, places; no bytes), in order. Equal
    on all of them, or they would deal it out among themselves in different ways."""
    lines: dict[tuple[int, ...], list[str]] = {}
    for leaf in leaves:
        if len(leaf.holders) > 1:
            what = (
                leaf.name,
                str(leaf.tensor.dtype),
                leaf.shape,
                leaf.offsets,
                tuple(leaf.tensor.shape),
                int(leaf.tier),
            )
            lines.setdefault(leaf.holders, []).append(repr(what))
    return {
        holders: blake2b("\n".join(held).encode(), digest_size=16).hexdigest()
        for holders, held in sorted(lines.items())
    }


def alone(leaves: Iterable[StateTensor], rank: int) -> bool:
    """Whether this rank has tensors that no other one has: if it dies, they are lost. (Generators and other extras are each
    rank's own, and are lost with it.)"""
    return any(leaf.tensor.numel() and leaf.holders in ((), (rank,)) for leaf in leaves)


def digests(leaves: Iterable[StateTensor], rank: int, look: Callable[[], object] = int) -> dict[str, int]:
    """The CRC32 of all that others hold too, by what it is: the name, and where it lies in the whole. Reads every byte.

    Args:
        look: called before each 64 MiB; what it raises ends the reading.
    """
    return {
        leaf.name if leaf.offsets is None else f"{leaf.name} at {list(leaf.offsets)}": crc_of(
            leaf.tensor, look
        )
        for leaf in leaves
        if len(leaf.holders) > 1 and rank in leaf.holders
    }


def drifted(digests: Sequence[Mapping[str, int]]) -> list[str]:
    """What the replicas of several ranks should have in common and have not, in order."""
    first: dict[str, int] = {}
    found: set[str] = set()
    for held in digests:
        found |= {name for name, digest in held.items() if first.setdefault(name, digest) != digest}
    return sorted(found)


def crc_of(tensor: torch.Tensor, look: Callable[[], object] = int) -> int:
    """Of all that lies here. `look` as for `digests`."""
    flat = copyable(tensor.detach()).cpu().contiguous().reshape(-1).view(torch.uint8)
    crc = 0
    for piece in flat.split(_PIECE):
        look()
        crc = crc32(piece.numpy().data, crc)
    return crc
