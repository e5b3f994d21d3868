"""The check that equal names on several groups of ranks mean one tensor, because in a checkpoint one name is one tensor.

Pipeline stages break this rule if each counts its layers from 0, and is cut or replicated among ranks of its own. Their save
would never be whole, and only the first save would show it. This check finds it when the ranks have just met.

A tensor that is not declared as shared has its rank's number in its name, and cannot clash.
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
from ..state.state_tensor import StateTensor
from .channel import Channel
from .collective_results import results_of_all_ranks

log = logging.getLogger("spotguard")

#: Most namesakes of one shape whose bytes are read: enough to tell stages from replicas. A large model has thousands.
_READ = 64

_WAY_OUT = (
    "in a checkpoint one name is one tensor, so name the layers of a pipeline stage by their positions "
    "in the full model, or register each stage under its own name [SG412]"
)


@dataclass(frozen=True, slots=True)
class TensorClaim:
    """A tensor's group, type and shape, as the first rank of its group reports them."""

    group: tuple[int, ...]
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} on {named(self.group)}"


@dataclass(frozen=True, slots=True)
class NameClash:
    """One name for tensors on two groups."""

    name: str
    one: TensorClaim
    other: TensorClaim

    @property
    def alike(self) -> bool:
        """Whether the two may be one tensor, as far as their types and shapes show."""
        return (self.one.dtype, self.one.shape) == (self.other.dtype, self.other.shape)


def refuse_namesakes(channel: Channel, collect: Callable[[], Sequence[StateTensor]]) -> None:
    """Check that equal names mean one tensor. The training threads of all ranks call it at once; if one raises, all do.

    Args:
        collect: returns the tensors of this rank. If it raises on one rank, all ranks raise.

    Raises:
        StateError: two tensors have one name, or a rank's state cannot be collected.
        StoreSilent: not all ranks have come.
    """
    shared: list[StateTensor] = []

    def lie_on() -> list[tuple[int, ...]]:
        shared.extend(state_tensor for state_tensor in collect() if state_tensor.group)
        return [*{state_tensor.group for state_tensor in shared}]

    of_ranks = results_of_all_ranks(channel, lie_on)
    groups = {tuple(group) for each in of_ranks for group in each}
    if len(groups) < 2:
        return  # nearly always: all shared tensors are on the same ranks
    first = {
        state_tensor.name: state_tensor for state_tensor in shared if state_tensor.group[0] == channel.rank
    }
    of_ranks = results_of_all_ranks(
        channel, lambda: {name: _said(state_tensor) for name, state_tensor in first.items()}
    )
    pairs = [*namesakes([_read(message) for message in of_ranks])]
    for pair in pairs:
        if not pair.alike:
            raise StateError(f"{pair.name} is both {pair.one} and {pair.other}; {_WAY_OUT}")
    if pairs:
        _compare(channel, first, pairs)


def namesakes(claims: Sequence[Mapping[str, TensorClaim]]) -> Iterator[NameClash]:
    """Yield the names that are on different groups: the first claim of a name, paired with each other one.

    Args:
        claims: the claims of each rank, by name.
    """
    first: dict[str, TensorClaim] = {}
    for of_rank in claims:
        for name, each in of_rank.items():
            if (earlier := first.setdefault(name, each)).group != each.group:
                yield NameClash(name, earlier, each)


def _compare(channel: Channel, first: Mapping[str, StateTensor], pairs: Sequence[NameClash]) -> None:
    """Compare the values of namesakes, which may be replicas that no wrapper declares. With other values they are none.

    Raises:
        StateError: two namesakes have different values.
    """
    read = {pair.name for pair in pairs[:_READ]}
    # Reading bytes may fail for want of memory, so it runs inside `results_of_all_ranks`.
    checksums = results_of_all_ranks(
        channel,
        lambda: {n: [x.offsets, [*x.tensor.shape], crc_of(x.tensor)] for n, x in first.items() if n in read},
    )
    for name, one, other in ((pair.name, pair.one.group, pair.other.group) for pair in pairs[:_READ]):
        *box, crc = checksums[one[0]][name]
        *their_box, their_crc = checksums[other[0]][name]
        if box == their_box and crc != their_crc:
            raise StateError(
                f"{name} is on {named(one)} and on {named(other)} with different values; {_WAY_OUT}. If "
                "they are replicas, make them equal before register, or wrap them: fully_shard over a "
                "mesh of two dimensions"
            )
    if channel.rank == 0:
        log.warning(
            "%s and %d more tensors are on %s and again on %s, and no wrapper declares them replicas: no "
            "save will succeed once they differ. If they are not replicas: %s",
            pairs[0].name,
            len(pairs) - 1,
            named(pairs[0].one.group),
            named(pairs[0].other.group),
            _WAY_OUT,
        )


def _said(state_tensor: StateTensor) -> list[object]:
    shape = state_tensor.tensor.shape if state_tensor.shape is None else state_tensor.shape
    return [state_tensor.group, dtype_name(state_tensor.tensor.dtype), [*shape]]


def _read(message: Mapping[str, Any]) -> dict[str, TensorClaim]:
    return {
        name: TensorClaim(tuple(group), dtype, tuple(shape))
        for name, (group, dtype, shape) in message.items()
    }
