"""Tensors of one name on several groups of ranks. In a checkpoint one name is one tensor.

So it is with pipeline stages that count their layers from 0, each cut or replicated among ranks of its own: what they save
would never be a whole, and the first save would be the one to say so. Here the ranks find it out when they have just met.
(A tensor that nobody declares to be shared bears its rank's number, and has no namesakes.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...providers.errors import StateError
from ..checkpoint.format.dtypes import dtype_name
from ..checkpoint.format.manifest import named
from ..state.sharding.fingerprint import crc_of
from ..state.tensor_item import StateTensor
from .agree_on import of_all
from .channel import Channel

log = logging.getLogger("spotguard")

#: Namesakes of one shape whose bytes are read: so many tell stages from replicas, and a large model has thousands.
_READ = 64

_WAY_OUT = (
    "in a checkpoint one name is one tensor, so name a pipeline stage's layers by their places in the whole model, or "
    "register each stage under a name of its own"
)


@dataclass(frozen=True, slots=True)
class TensorClaim:
    """Of a tensor, by the first rank of those that it lies on."""

    group: tuple[int, ...]
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} on {named(self.group)}"


@dataclass(frozen=True, slots=True)
class NameClash:
    """Of one name, on two groups."""

    name: str
    one: TensorClaim
    other: TensorClaim

    @property
    def alike(self) -> bool:
        """Whether they may be the same, as far as can be seen without their bytes."""
        return (self.one.dtype, self.one.shape) == (self.other.dtype, self.other.shape)


def refuse_namesakes(channel: Channel, collect: Callable[[], Sequence[StateTensor]]) -> None:
    """See that equal names are one tensor. On the training thread, of all ranks at once: all raise where one has to.

    Args:
        collect: gives what this rank holds. What it raises is raised on all.

    Raises:
        StateError: two tensors have one name; or a rank's state cannot be collected.
        Silent: not all have come.
    """
    shared: list[StateTensor] = []

    def lie_on() -> list[tuple[int, ...]]:
        shared.extend(leaf for leaf in collect() if leaf.group)
        return [*{leaf.group for leaf in shared}]

    told = of_all(channel, lie_on)
    groups = {tuple(group) for each in told for group in each}
    if len(groups) < 2:
        return  # as nearly always: all that is shared lies on the same ranks
    first = {leaf.name: leaf for leaf in shared if leaf.group[0] == channel.rank}
    told = of_all(channel, lambda: {name: _said(leaf) for name, leaf in first.items()})
    pairs = [*namesakes([_read(said) for said in told])]
    for pair in pairs:
        if not pair.alike:
            raise StateError(f"{pair.name} is {pair.one} and {pair.other}; {_WAY_OUT}")
    if pairs:
        _compare(channel, first, pairs)


def namesakes(said: Sequence[Mapping[str, TensorClaim]]) -> Iterator[NameClash]:
    """What lies by one name on different groups: who said so first, with each other.

    Args:
        said: by name, of each rank.
    """
    first: dict[str, TensorClaim] = {}
    for known in said:
        for name, each in known.items():
            if (held := first.setdefault(name, each)).group != each.group:
                yield NameClash(name, held, each)


def _compare(channel: Channel, first: Mapping[str, StateTensor], pairs: Sequence[NameClash]) -> None:
    """They may be replicas that nobody declares. With other values they are none."""
    read = {pair.name for pair in pairs[:_READ]}
    # Reads bytes, for which there may be no memory here.
    told = of_all(
        channel,
        lambda: {n: [x.offsets, [*x.tensor.shape], crc_of(x.tensor)] for n, x in first.items() if n in read},
    )
    for name, one, other in ((pair.name, pair.one.group, pair.other.group) for pair in pairs[:_READ]):
        *box, crc = told[one[0]][name]
        *their_box, their_crc = told[other[0]][name]
        if box == their_box and crc != their_crc:
            raise StateError(
                f"{name} is on {named(one)} and on {named(other)} with other values; {_WAY_OUT}. Replicas are made "
                "equal before register, or wrapped: fully_shard over a mesh of two dimensions"
            )
    if channel.rank == 0:
        log.warning(
            "%s and %d more tensors are on %s and again on %s, and no wrapper says that they are the same: no save will "
            "succeed once they differ. If they are not replicas: %s",
            pairs[0].name,
            len(pairs) - 1,
            named(pairs[0].one.group),
            named(pairs[0].other.group),
            _WAY_OUT,
        )


def _said(leaf: StateTensor) -> list[object]:
    shape = leaf.tensor.shape if leaf.shape is None else leaf.shape
    return [leaf.group, dtype_name(leaf.tensor.dtype), [*shape]]


def _read(said: Mapping[str, Any]) -> dict[str, TensorClaim]:
    return {
        name: TensorClaim(tuple(group), dtype, tuple(shape)) for name, (group, dtype, shape) in said.items()
    }
