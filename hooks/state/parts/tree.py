"""Trees: the values of a part as plain Python (dicts, lists, numbers …) with tensors in it.

`freeze` copies one at a boundary. `prove` checks at `register` that it can be saved and read back. `SavedTrees` are those of a
checkpoint, of all ranks. `hooks.checkpoint.format.values.encoder` turns a tree into typed JSON, and its tensors into named entries
of the checkpoint.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ....providers.errors import StateError
from ...checkpoint.format.values.decoder import decode
from ...checkpoint.format.values.encoder import encode
from ...checkpoint.format.values.sameness import same
from ..device.events import unordered
from ..memory_access import copyable, lack
from ..sharding.dtensor import RankOf, is_dtensor


def freeze(value: Any, devices: set[torch.device] | None = None) -> Any:
    """Return a copy of `value` that later changes cannot reach: containers and tensors are copied, atoms are shared.

    A value that cannot be copied is returned as it is. It cannot be saved either, and the encoder refuses it by name.

    Args:
        value: a tree of any objects.
        devices: a set that receives the devices of copied tensors; never the host.

    Raises:
        StateError: a tensor's memory was freed, or no call can report when a device has copied the tensor.
    """
    kind = type(value)
    if kind in _ATOMS:
        return value
    if kind is dict:
        return {k: freeze(v, devices) for k, v in value.items()}
    if kind is list:
        return [freeze(v, devices) for v in value]
    if kind is tuple:
        return tuple([freeze(v, devices) for v in value])
    if isinstance(value, torch.Tensor):
        if is_dtensor(value):
            raise StateError(
                "a DTensor outside a module or an optimizer, which cannot be saved; use a plain tensor, or leave it out [SG401]"
            )
        if value.layout is torch.strided and value.device.type != "meta" and (why := lack(value)):
            raise StateError(f"{why}, which cannot be saved; use a plain tensor, or leave it out [SG401]")
        if devices is not None and not value.is_cpu and value.device not in devices:
            if why := unordered(value.device):
                raise StateError(f"a tensor on {value.device}, {why}; move it to the host, or leave it out")
            devices.add(value.device)
        return copyable(value.detach()).clone().view(value.dtype)
    if kind is deque:
        return deque([freeze(v, devices) for v in value], value.maxlen)
    if kind is OrderedDict:
        return OrderedDict([(k, freeze(v, devices)) for k, v in value.items()])
    if kind is defaultdict:
        return defaultdict(value.default_factory, {k: freeze(v, devices) for k, v in value.items()})
    try:
        copied = copy.deepcopy(value)
        return copied if type(copied) is kind else value  # its `__reduce__` may make any other object of it
    except Exception:  # noqa: BLE001 - any code may run here, and pickle raises errors of every kind
        return value


_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size})


def freeze_of(name: str, value: Any, devices: set[torch.device]) -> Any:
    """Do the work of `freeze`; an error names the registered value."""
    try:
        return freeze(value, devices)
    except StateError as error:
        raise StateError(f"{name} holds {error}") from error
    except RecursionError:  # deeper than any savable value, or a circle: no copy, as above
        return value


def prove(name: str, tree: Any) -> Any:
    """Save a tree and read it back, in memory; return the tree that came back.

    Raises:
        StateError: the tree that came back differs. The message names the difference and its path.
    """
    kept: dict[str, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> str:
        kept[f"#{len(kept)}"] = tensor
        return f"#{len(kept) - 1}"

    back = decode(encode(tree, keep, name), kept.__getitem__)
    if (path := same(tree, back)) != "":
        raise StateError(f"{name}{path} does not survive saving and reading back; leave it out")
    return back


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor inside a tree, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple, set, frozenset)) or hasattr(value, "popleft"):
        for item in value:
            yield from tensors_in(item)


class SavedTrees:
    """The trees of all ranks of the saved job under one registered name. Each tree is decoded once, when it is first needed.

    Args:
        saved: the encoded tree by rank of that job, for each rank that has the name.
        world: the number of ranks of that job.
        ranks: this process's rank in the resumed job, and the number of its ranks.
        decode: decodes an encoded tree.
        stand_ins: for a rank without the name, the rank whose tree is identical to it.
    """

    def __init__(
        self,
        saved: Mapping[int, Any],
        world: int,
        ranks: RankOf,
        decode: Callable[[Any], Any],
        stand_ins: Mapping[int, int],
    ) -> None:
        self.ranks = ranks
        self.world = world
        place = ranks.rank % world
        if place not in saved:
            place = stand_ins.get(place, place)
        self._order = sorted(saved, key=lambda rank: (rank != place, rank))
        self._saved = saved
        self._there = place in saved
        self._decode = decode
        self._decoded: dict[int, Any] = {}

    @property
    def own(self) -> Any:
        """Return the tree of the rank whose place this rank has.

        If that rank did not have the name, return the tree of its stand-in, or of the first rank that has the name.
        """
        return self.of(self.source)

    @property
    def source(self) -> int:
        """Return the rank that `own` comes from."""
        return self._order[0]

    def of(self, rank: int) -> Any:
        if rank not in self._decoded:
            self._decoded[rank] = self._decode(self._saved[rank])
        return self._decoded[rank]

    def each(self) -> Iterator[tuple[int, Any]]:
        """Yield pairs of rank and tree, beginning with `own`. A tree is decoded only when the caller reaches it."""
        return ((rank, self.of(rank)) for rank in self._order)

    @property
    def decoded(self) -> Sequence[Any]:
        return list(self._decoded.values())

    @property
    def was_there(self) -> bool:
        """Return whether the rank whose place this rank has, or its stand-in, saved anything.

        A rank that died before the others saved did not.
        """
        return self._there

    @property
    def alone(self) -> bool:
        """Return whether one process saved everything, and one process restores it."""
        return self.world == 1 and self.ranks.world == 1
