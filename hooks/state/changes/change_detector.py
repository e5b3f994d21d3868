"""A cheap check that the state did not change since the last boundary.

The detector takes three measures at the boundary, and compares them before and during a save:

- The sum of `_version` of all tensors. In-place operations increase it. Operations through `.data`, fused optimizers,
  and EMA swaps written with `.data` do not (observed).
- One element of a few tensors of each kind, read straight from memory. This catches the changes that versions miss.
  It takes 0.4 µs for 32 tensors by one join of their buffers; reading the value of each word takes twice that.
- The address of every probed tensor's storage, and of every live tensor that a save reads in place. This catches
  `.data = other`.

Before each read from memory the detector checks the storage's address (`stands`). A resized storage has another block
or none, and reading the old block would end the process.
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

#: The number of tensors probed, evenly spread over the list, so that each kind of layer is among them. Sixteen of the
#: optimizers' tensors and sixteen of the others are enough: a swap or a scaling changes them all. Each probe costs
#: 0.06 µs per boundary, most of it for the check of its storage.
PROBES = 16

_WORD = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64, 16: ctypes.c_uint64}
_version = operator.attrgetter("_version")
_address = torch.UntypedStorage.data_ptr


def on_host(tensor: torch.Tensor) -> bool:
    """Return whether this process can read the tensor by its address."""
    return tensor.device.type == "cpu"


class ChangeDetector:
    """The versions, sampled bytes and addresses of tensors at the last boundary.

    Args:
        owned: every tensor that only a hooked optimizer changes: parameters first, then their moments.
        others: the other tensors read in place: an EMA, frozen weights, large buffers. Any code may change them, but
            none does between boundaries.
        sources: pairs of a live tensor and the alias that a save reads. Both must stay the same memory, also for a
            DTensor's local shard.
        readable: returns whether a tensor can be read by its address. The other tensors are compared on their device.
        record: records an event on a device.
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
        # Aliases, so that the memory that a probe reads stays allocated even when `.data` is pointed elsewhere.
        owned_probes, other_probes = _spread(owned), _spread(others)
        self._held = [*owned_probes, *other_probes]
        self._host = [_word(t) for t in self._held if readable(t)]
        self._device = DeviceProbes(
            [t for t in owned_probes if not readable(t)], [t for t in other_probes if not readable(t)], record
        )
        self._storages = [t.untyped_storage() for t in self._held]
        self._blocks = [*map(_address, self._storages)]
        #: The number of probed bytes that belong to the optimizers.
        self._owned = sum(t.itemsize for t in owned_probes if readable(t))
        self._versions = -1
        self._seen = b""

    def stands(self) -> bool:
        """Return whether the probed memory is still at its address. If not, this detector can no longer be used."""
        return [*map(_address, self._storages)] == self._blocks

    def mark(self, stepped: bool = False) -> bool:
        """Record the measures at the boundary. On the training thread, only if the memory `stands`.

        Args:
            stepped: a registered optimizer stepped since the last mark, so its tensors may have changed.

        Returns:
            Whether tensors that only optimizers change have changed without a step. A device reports this one
            boundary or more later.
        """
        before = self._seen
        self._versions = sum(map(_version, self._versioned))
        self._seen = b"".join(self._host)
        far = self._device.mark(stepped)
        near = not stepped and bool(before) and before[: self._owned] != self._seen[: self._owned]
        return near or far

    def broken(self) -> str:
        """Return what changed since the mark; "" if nothing did. Any thread may call it; it takes some µs."""
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
    """Return up to `PROBES` tensors as aliases, evenly chosen."""
    chosen = [t for t in tensors if t.numel() and not gap(t)]
    if len(chosen) > PROBES:
        chosen = [chosen[i * len(chosen) // PROBES] for i in range(PROBES)]
    return [t.detach() for t in chosen]


def _word(tensor: torch.Tensor) -> ctypes._SimpleCData[int]:
    """Return the word in the middle of a tensor, read by its address."""
    offset = sum((size // 2) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return _WORD[tensor.itemsize].from_address(tensor.data_ptr() + offset * tensor.itemsize)


# Detection of layers and tensors that are added to a module after `register`, after every step, so that a save has
# them too.
#
# A module keeps its parameters, buffers and children in three dicts. The check finds a dict that grew or shrank, a
# child that was replaced, and a reserved place (`register_buffer(name, None)`) that was filled. It takes 12 µs for
# ResNet-50's 108 modules. Only a new listing tells exactly which entry changed. The check does not find a tensor that
# replaces another: the code that reads tensors compares those anyway.

_values = operator.methodcaller("values")


class ModuleTables:
    """The tables of a module and its submodules, as they were at construction."""

    def __init__(self, module: nn.Module) -> None:
        below = [*module.modules()]
        self._tensors: list[dict[str, Any]] = [t for each in below for t in (each._parameters, each._buffers)]
        self._children: list[dict[str, Any]] = [each._modules for each in below if len(each._modules)]
        #: A first child of a module without children is one more entry, so these tables are counted with the tensors.
        self._tensors += [each._modules for each in below if not len(each._modules)]
        self._count = sum(map(len, self._tensors))
        self._hung = [*chain.from_iterable(map(_values, self._children))]
        self._free = [
            (table, key) for table in self._tensors for key, value in table.items() if value is None
        ]

    def same(self) -> bool:
        """Return whether the tables hold the same entries. Any thread may call it."""
        now = [*chain.from_iterable(map(_values, self._children))]
        free = [table.get(key) for table, key in self._free]
        return (
            len(now) == len(self._hung)
            and all(map(operator.is_, now, self._hung))
            and sum(map(len, self._tensors)) == self._count
            and all(map(operator.is_, free, repeat(None)))
        )
