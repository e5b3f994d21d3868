"""The window is checked, not trusted: did the state really stand still since the last boundary?

Three cheap witnesses, taken at the boundary and asked again before and during a save:
- the sum of `_version` of every tensor, which in-place operations bump (but not those through `.data`, fused
  optimizers, and EMA swaps written with `.data`: seen);
- one element of a few tensors of each kind, read straight from memory, which catches those (0.4 µs for 32: one join
  of their buffers; reading each word's value takes twice that);
- the address of every tensor's storage, which catches `.data = other`.

What is read straight from memory is looked at before each read (`stands`): a storage that was resized has another
block, or none, and reading the old one would end the process.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Any

import torch
from torch import nn

from ..device import DeviceProbes, Event, record
from ..memory_access import gap
from ..sharding.dtensor import local

#: How many tensors are probed: evenly spread over the list, so that every layer kind is among them.
#: Sixteen each of the optimizers' and of the others: a swap or a scaling moves them all, and each one costs 0.06 µs a
#: boundary, most of it for the look at its storage.
PROBES = 16

_WORD = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64, 16: ctypes.c_uint64}
_version = operator.attrgetter("_version")
_address = torch.UntypedStorage.data_ptr


def on_host(tensor: torch.Tensor) -> bool:
    """Whether this process can read the tensor by its address."""
    return tensor.device.type == "cpu"


class ChangeDetector:
    """Remembers what some tensors looked like at a boundary.

    Args:
        owned: every tensor that only a hooked optimizer changes: parameters first, then their moments.
        others: what else is read in place: an EMA, frozen weights, large buffers. Anybody may change them, but
            between boundaries nobody does.
        sources: (live tensor, alias that is read) pairs: both must stay the same memory, a DTensor's local shard too.
        readable: whether a tensor is read by its address. The others are asked on their device.
        record: how an event is recorded on a device.
    """

    def __init__(
        self,
        owned: Sequence[torch.Tensor],
        others: Sequence[torch.Tensor],
        sources: Sequence[tuple[torch.Tensor, torch.Tensor]],
        readable: Callable[[torch.Tensor], bool] = on_host,
        record: Callable[[torch.device, Event | None], Event] = record,
    ) -> None:
        self._versioned = [t for t in (*owned, *others) if not t.is_inference()]
        self._sources = [pair for pair in sources if not (gap(local(pair[0])) or gap(pair[1]))]
        # Aliases, so that the memory a probe reads stays ours even when `.data` is pointed elsewhere.
        mine, theirs = _spread(owned), _spread(others)
        self._held = [*mine, *theirs]
        self._host = [_word(t) for t in self._held if readable(t)]
        self._device = DeviceProbes(
            [t for t in mine if not readable(t)], [t for t in theirs if not readable(t)], record
        )
        self._storages = [t.untyped_storage() for t in self._held]
        self._blocks = [*map(_address, self._storages)]
        #: How many of the probed bytes are the optimizers'.
        self._owned = sum(t.itemsize for t in mine if readable(t))
        self._versions = -1
        self._seen = b""

    def stands(self) -> bool:
        """Whether the memory that is probed is still where it was. Where not, this witness is of no more use."""
        return [*map(_address, self._storages)] == self._blocks

    def mark(self, stepped: bool = False) -> bool:
        """At the boundary, on the training thread, where everything `stands`.

        Args:
            stepped: a registered optimizer stepped since the last mark: what they own has moved, and may.

        Returns:
            Whether what only optimizers change moved though none had stepped. A device tells a boundary or more later.
        """
        before = self._seen
        self._versions = sum(map(_version, self._versioned))
        self._seen = b"".join(self._host)
        far = self._device.mark(stepped)
        near = not stepped and bool(before) and before[: self._owned] != self._seen[: self._owned]
        return near or far

    def broken(self) -> str:
        """Nothing while everything stands as it stood at the mark, else what moved. Any thread; some µs."""
        if sum(map(_version, self._versioned)) != self._versions:
            return "a tensor was changed in place after guard.step()"
        if not self.stands():
            return "a tensor's storage was resized after guard.step()"
        if b"".join(self._host) != self._seen:
            return "a parameter was changed through .data (or by a fused kernel) after guard.step()"
        if self._device.differ():
            return "a parameter on the device was changed after guard.step()"
        for live, alias in self._sources:
            if local(live).data_ptr() != alias.data_ptr():
                return "a parameter's storage was replaced after guard.step()"
        return ""


def _spread(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Some of the tensors, as aliases, evenly chosen."""
    some = [t for t in tensors if t.numel() and not gap(t)]
    if len(some) > PROBES:
        some = [some[i * len(some) // PROBES] for i in range(PROBES)]
    return [t.detach() for t in some]


def _word(tensor: torch.Tensor) -> ctypes._SimpleCData[int]:
    """The word in the middle of a tensor, read by its address."""
    offset = sum((size // 2) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return _WORD[tensor.itemsize].from_address(tensor.data_ptr() + offset * tensor.itemsize)


# What hangs in a module and below it: looked at after every step, so that a layer that comes later is saved too.
#
# A module keeps what it holds in three dicts. That one of them grew or shrank, that a child was replaced, or that a place
# kept free (`register_buffer(name, None)`) was filled shows at a cost of 12 µs for ResNet-50's 108 modules; what exactly
# it was, only a new listing tells. A tensor that replaces another is not looked for here: its reader compares them anyway.

_values = operator.methodcaller("values")


class ModuleTables:
    """Remembers what hung in a module when it was made."""

    def __init__(self, module: nn.Module) -> None:
        below = [*module.modules()]
        self._tensors: list[dict[str, Any]] = [t for each in below for t in (each._parameters, each._buffers)]
        self._children: list[dict[str, Any]] = [each._modules for each in below if len(each._modules)]
        #: Where there was none a first child would be one more, so they are counted with the tensors.
        self._tensors += [each._modules for each in below if not len(each._modules)]
        self._count = sum(map(len, self._tensors))
        self._hung = [*chain.from_iterable(map(_values, self._children))]
        self._free = [
            (table, key) for table in self._tensors for key, value in table.items() if value is None
        ]

    def same(self) -> bool:
        """Whether all of it hangs where it hung. Any thread."""
        now = [*chain.from_iterable(map(_values, self._children))]
        free = [table.get(key) for table, key in self._free]
        return (
            len(now) == len(self._hung)
            and all(map(operator.is_, now, self._hung))
            and sum(map(len, self._tensors)) == self._count
            and all(map(operator.is_, free, repeat(None)))
        )
