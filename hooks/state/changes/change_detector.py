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
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Any, Literal

import torch
from torch import nn

from ...checkpoint.format.crc import crc32
from ..device.events import Event, record
from ..device.probes import DeviceProbes
from ..memory_access import copyable, unreadable
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
        # Not the optimizers' step counts: a quarter of all tensors for Adam, and nothing changes them but a step.
        counts = {id(t) for t in owned if not (t.dim() or t.requires_grad or isinstance(t, nn.Parameter))}
        self._versioned = [t for t in (*owned, *others) if not t.is_inference() and id(t) not in counts]
        self._sources = [pair for pair in sources if not (unreadable(local(pair[0])) or unreadable(pair[1]))]
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

    def unchanged_by_host(self) -> bool:
        """Return whether the host has launched no change in place since the mark, as far as versions tell."""
        launched: int = sum(map(_version, self._versioned))
        return launched == self._versions

    @property
    def on_devices(self) -> list[torch.Tensor]:
        """The sampled bytes of devices at the last mark."""
        return self._device.seen

    def inconsistency(self, seen: Sequence[torch.Tensor] | None = None) -> str:
        """Return what changed since the mark; "" if nothing did. Any thread may call it.

        It takes some µs, and on a device a copy of some bytes of each probe.

        Args:
            seen: `on_devices` of an earlier mark, for what changed on devices since that one. Versions and the bytes on the host
                count what the host has launched, which a device may not have run.
        """
        if seen is None and not self.unchanged_by_host():
            return "a tensor was changed in place after guard.step()"
        if not self.stands():
            return "a tensor's storage was resized after guard.step()"
        if seen is None and b"".join(self._host) != self._seen:
            return "a parameter was changed through .data (or by a fused kernel) after guard.step()"
        if self._device.differ(seen):
            return "a parameter on the device was changed after guard.step()"
        if any(local(live).data_ptr() != alias.data_ptr() for live, alias in self._sources):
            return "a parameter's storage was replaced after guard.step()"
        return ""


def _spread(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return up to `PROBES` tensors as aliases, evenly chosen."""
    chosen = [t for t in tensors if t.numel() and not unreadable(t)]
    if len(chosen) > PROBES:
        chosen = [chosen[i * len(chosen) // PROBES] for i in range(PROBES)]
    return [t.detach() for t in chosen]


def _word(tensor: torch.Tensor) -> ctypes._SimpleCData[int]:
    """Return the word in the middle of a tensor, read by its address."""
    offset = sum((size // 2) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return _WORD[tensor.itemsize].from_address(tensor.data_ptr() + offset * tensor.itemsize)


# --- a module's entries ---
#
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


# --- checksums ---
#
# A checksum of some bytes of a tensor: equal for equal bytes, whether they are on the host or on a device.
#
# On the host the checksum is CRC32: 8 GB/s per core, with the GIL released. A device sums 64-bit words within blocks of
# 64 KiB and across blocks. Each column has its own weight, so that swapped rows change the sum. Nothing waits for the
# device's kernels. The same sums of a copy on the host cost as little.

#: CRC32 as a number, or sums as a tensor, on the device or on the host.
Checksum = int | torch.Tensor
Kind = Literal["crc32", "sums"]

#: 64-bit words per block.
_WORDS = 8192


class ChecksumSource(ABC):
    """A tensor as bytes, in the order of its elements, whatever their order in memory."""

    kind: Kind

    def __init__(self, name: str, tensor: torch.Tensor, row_bytes: int) -> None:
        self.name = name
        #: Kept, so that the memory stays allocated even when `.data` is pointed elsewhere.
        self.tensor = tensor
        self.nbytes = tensor.nbytes
        self._row_bytes = row_bytes
        self._storage = tensor.untyped_storage()
        self._block = _address(self._storage)

    def stands(self) -> bool:
        """Return whether the memory is still at its address. If not, it must not be read."""
        return _address(self._storage) == self._block

    def whole_rows(self, nbytes: int) -> int:
        """Return the largest number of bytes up to `nbytes` that ends between rows; at least one row."""
        return max(nbytes // self._row_bytes, 1) * self._row_bytes

    @abstractmethod
    def read(self, start: int, stop: int, *, on_host: bool = False) -> Checksum:
        """Return the checksum of the bytes from `start` to `stop`, both between rows.

        Args:
            on_host: copy the bytes of a device first, and compute on the host: a device that hangs begins no kernel.
        """


def source(name: str, tensor: torch.Tensor, kind: Kind | None = None) -> ChecksumSource:
    """Return the source for a tensor.

    Args:
        name: the tensor's name in the checkpoint.
        tensor: the tensor.
        kind: the kind of the checksum to compare with; by default, the kind that suits the tensor's device.
    """
    tensor = copyable(tensor.detach())
    kind = kind or ("crc32" if tensor.device.type == "cpu" else "sums")
    plain = tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
    if kind == "crc32" and plain:
        return _Memory(name, tensor)
    return _Rows(name, tensor, kind, plain)


def equal(one: Checksum, other: Checksum) -> bool:
    """Return whether two checksums are equal. This waits for a device that has not computed its checksum yet."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one.cpu(), other.cpu())
    return isinstance(one, int) and isinstance(other, int) and one == other


class _Memory(ChecksumSource):
    """Contiguous bytes on the host."""

    kind: Kind = "crc32"

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        super().__init__(name, tensor, 1)
        self._bytes = memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")

    def read(self, start: int, stop: int, *, on_host: bool = False) -> Checksum:
        return crc32(self._bytes[start:stop])


class _Rows(ChecksumSource):
    """Any other bytes, read by single elements if the tensor is contiguous, otherwise by entries of the first dimension."""

    def __init__(self, name: str, tensor: torch.Tensor, kind: Kind, plain: bool) -> None:
        self._rows = tensor.reshape(-1) if plain or not tensor.dim() else tensor
        super().__init__(name, tensor, tensor.nbytes // self._rows.shape[0])
        self.kind = kind

    def read(self, start: int, stop: int, *, on_host: bool = False) -> Checksum:
        rows = self._rows[start // self._row_bytes : stop // self._row_bytes]
        if on_host:
            rows = rows.cpu()
        some = rows.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        return _sums(some) if self.kind == "sums" else crc32(some.numpy().data)


def _sums(flat: torch.Tensor) -> torch.Tensor:
    """Return three kinds of sums of the bytes, as one tensor.

    The first are the sums of the words of each block. The second is the sum of all words, each weighted by its place
    in its block. The third is the sum of the bytes after the last word.
    """
    words = flat.numel() // 8
    blocks = words // _WORDS
    if flat.storage_offset() % 8:
        flat = flat.clone()
    body = flat[: words * 8].view(torch.int64)
    full_blocks, rest = body[: blocks * _WORDS].view(blocks, _WORDS), body[blocks * _WORDS :]
    columns = full_blocks.sum(0)
    weights = torch.arange(1, _WORDS + 1, device=flat.device)
    # Each call launches a kernel, and most tensors have neither a rest nor a tail.
    if rest.numel():
        columns[: rest.numel()] += rest
    sums = [full_blocks.sum(1), (columns * weights).sum().reshape(1)]
    if flat.numel() > words * 8:
        sums.append(flat[words * 8 :].sum(dtype=torch.int64).reshape(1))
    return torch.cat(sums)
