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
from collections.abc import Sequence

import torch

from .shards import local
from .storage import gap

#: How many tensors are probed: evenly spread over the list, so that every layer kind is among them.
#: Sixteen each of the optimizers' and of the others: a swap or a scaling moves them all, and each one costs 0.06 µs a
#: boundary, most of it for the look at its storage.
PROBES = 16

_WORD = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64, 16: ctypes.c_uint64}
_version = operator.attrgetter("_version")
_address = torch.UntypedStorage.data_ptr


class Witness:
    """Remembers what some tensors looked like at a boundary.

    Args:
        owned: every tensor that only a hooked optimizer changes: parameters first, then their moments.
        others: what else is read in place: an EMA, frozen weights, large buffers. Anybody may change them, but
            between boundaries nobody does.
        sources: (live tensor, alias that is read) pairs: both must stay the same memory, a DTensor's local shard too.
    """

    def __init__(
        self,
        owned: Sequence[torch.Tensor],
        others: Sequence[torch.Tensor],
        sources: Sequence[tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        self._versioned = [t for t in (*owned, *others) if not t.is_inference()]
        self._sources = [pair for pair in sources if not (gap(local(pair[0])) or gap(pair[1]))]
        # Aliases, so that the memory a probe reads stays ours even when `.data` is pointed elsewhere.
        self._held = [*_spread(owned), *_spread(others)]
        self._host, self._device = _probes(self._held)
        self._storages = [t.untyped_storage() for t in self._held]
        self._blocks = [*map(_address, self._storages)]
        #: How many of the probed bytes are the optimizers'.
        self._owned = sum(t.itemsize for t in _spread(owned) if t.device.type == "cpu")
        self._versions = -1
        self._seen = b""
        self._seen_device: list[torch.Tensor] = []

    def stands(self) -> bool:
        """Whether the memory that is probed is still where it was. Where not, this witness is of no more use."""
        return [*map(_address, self._storages)] == self._blocks

    def mark(self) -> bool:
        """At the boundary, on the training thread, where everything `stands`. Returns whether what only optimizers
        change moved since the last mark."""
        before = self._seen
        self._versions = sum(map(_version, self._versioned))
        self._seen = b"".join(self._host)
        if self._device:
            self._seen_device = [torch.cat(group) for group in self._device]
        return bool(before) and before[: self._owned] != self._seen[: self._owned]

    def broken(self) -> str:
        """Nothing while everything stands as it stood at the mark, else what moved. Any thread; some µs."""
        if sum(map(_version, self._versioned)) != self._versions:
            return "a tensor was changed in place after guard.step()"
        if not self.stands():
            return "a tensor's storage was resized after guard.step()"
        if b"".join(self._host) != self._seen:
            return "a parameter was changed through .data (or by a fused kernel) after guard.step()"
        for group, seen in zip(self._device, self._seen_device, strict=False):
            if not torch.equal(torch.cat(group), seen):
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


def _probes(
    tensors: Sequence[torch.Tensor],
) -> tuple[list[ctypes._SimpleCData[int]], list[list[torch.Tensor]]]:
    """One word in the middle of each tensor: read by address on the host, by one kernel a dtype on a device."""
    host: list[ctypes._SimpleCData[int]] = []
    device: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for tensor in tensors:
        middle = tuple(size // 2 for size in tensor.shape)
        if tensor.device.type == "cpu":
            offset = sum(i * stride for i, stride in zip(middle, tensor.stride(), strict=True))
            word = _WORD[tensor.itemsize]
            host.append(word.from_address(tensor.data_ptr() + offset * tensor.itemsize))
        else:
            device.setdefault((tensor.device, tensor.dtype), []).append(tensor[middle].reshape(1))
    return host, list(device.values())
