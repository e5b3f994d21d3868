"""Copies, made at each boundary, of small tensors that any code may change between two steps (BatchNorm's statistics).

On the host one join copies their bytes straight from memory: 9 µs for ResNet-50's 159 buffers. As many copies by
torch take 80 µs, most of it for the calls. Memory that was freed must not be read, so check its address before each
copy (`stand`). Tensors are made from the bytes when a save asks for them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from ...checkpoint.format.values.sameness import same
from ..memory_access import copyable

_address = torch.UntypedStorage.data_ptr


class BoundaryCopies:
    """The tensors as they were at the last copy; at first, as they were at construction.

    Args:
        tensors: tensors with all of their bytes in memory of their own (`unreadable` returns "").
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        #: Aliases, so that the memory that is read stays allocated even when `.data` is pointed elsewhere.
        self.live = [copyable(t.detach()) for t in tensors]
        self._copies = [t.clone() for t in self.live]
        self._storages = [t.untyped_storage() for t in self.live]
        self._blocks = [*map(_address, self._storages)]
        plain = self._plain = [_is_plain(t) for t in self.live]
        joined = [t for t, one in zip(self.live, plain, strict=True) if one]
        self._words = [(ctypes.c_char * t.nbytes).from_address(t.data_ptr()) for t in joined]
        self._into = [t for t, one in zip(self._copies, plain, strict=True) if one]
        #: The others by device and type: a device copies only tensors of one type by few kernels (ResNet-50's buffers have
        #: two, and took 0.8 ms in one call).
        self._groups: dict[
            tuple[torch.device, torch.dtype], tuple[list[torch.Tensor], list[torch.Tensor]]
        ] = {}
        for live, copy, one in zip(self.live, self._copies, plain, strict=True):
            if not one:
                into, source = self._groups.setdefault((live.device, live.dtype), ([], []))
                into.append(copy)
                source.append(live)
        #: The bytes of the last copy on the host, for `as_of`.
        self.taken = self._made = b""
        #: Whether torch copies tensors on the host. The next copy then overwrites them at once.
        self.overwrites = any(
            t.is_cpu and t.numel() and not one for t, one in zip(self.live, plain, strict=True)
        )

    def stand(self) -> bool:
        """Return whether the memory is still at its address. If not, it must not be copied any more."""
        return [*map(_address, self._storages)] == self._blocks

    def take(self) -> None:
        """Copy all tensors. On the training thread, after every step, only if the tensors `stand`."""
        self.taken = b"".join(self._words)
        for into, source in self._groups.values():
            torch._foreach_copy_(into, source)

    def as_of(self, taken: bytes) -> dict[int, torch.Tensor]:
        """Return the tensors of an earlier copy that are in host memory, by the addresses of the copies and of the tensors.

        A device's copies are not among them: it makes the next ones behind the work in front of them.

        Args:
            taken: `taken` after that copy.
        """
        found, at = {}, 0
        live = (t for t, one in zip(self.live, self._plain, strict=True) if one)
        for tensor, copy in zip(live, self._into, strict=True):
            made = torch.empty_like(copy)
            ctypes.memmove(made.data_ptr(), taken[at : at + made.nbytes], made.nbytes)
            at += made.nbytes
            found[tensor.data_ptr()] = found[copy.data_ptr()] = made
        return found

    def tensors(self) -> list[torch.Tensor]:
        """Return the copies, each time as the same tensor objects. Do not call this while `take` runs."""
        if (taken := self.taken) is not self._made:
            at = 0
            for tensor in self._into:
                ctypes.memmove(tensor.data_ptr(), taken[at : at + tensor.nbytes], tensor.nbytes)
                at += tensor.nbytes
            self._made = taken
        return self._copies

    def moved(self) -> list[bool]:
        """Return whether each tensor differs from its last copy, in the order of `live`. Only if the tensors `stand`."""
        return [same(live, copy) != "" for live, copy in zip(self.live, self.tensors(), strict=True)]


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether the tensor's bytes are contiguous on the host, and need no conversion."""
    lazy = tensor.is_conj() or tensor.is_neg()
    return tensor.is_cpu and tensor.numel() > 0 and tensor.is_contiguous() and not lazy
