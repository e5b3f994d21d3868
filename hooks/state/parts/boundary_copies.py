"""Small tensors that anybody may change between two steps (BatchNorm's statistics), copied at each boundary.

On the host their bytes are joined, straight from memory: 9 µs for ResNet-50's 159 buffers, where as many copies of torch's
take 80, most of it for the calls. So their memory is looked at before each time: one that was given back is not there to be
read. Tensors are made of the bytes when a save asks for them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from ..memory_access import copyable

_address = torch.UntypedStorage.data_ptr


class BoundaryCopies:
    """The tensors as they were when they were last taken; at first, when this was made.

    Args:
        tensors: with all of their bytes in memory of their own (`gap`).
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        #: Aliases, so that what is read stays ours even when `.data` is pointed elsewhere.
        self.live = [copyable(t.detach()) for t in tensors]
        self._copies = [t.clone() for t in self.live]
        self._storages = [t.untyped_storage() for t in self.live]
        self._blocks = [*map(_address, self._storages)]
        plain = [_is_plain(t) for t in self.live]
        joined = [t for t, one in zip(self.live, plain, strict=True) if one]
        self._words = [(ctypes.c_char * t.nbytes).from_address(t.data_ptr()) for t in joined]
        self._into = [t for t, one in zip(self._copies, plain, strict=True) if one]
        self._others = [t for t, one in zip(self.live, plain, strict=True) if not one]
        self._others_into = [t for t, one in zip(self._copies, plain, strict=True) if not one]
        self._taken = self._made = b""

    def stand(self) -> bool:
        """Whether the memory is still where it was. Where not, nothing may be taken any more."""
        return [*map(_address, self._storages)] == self._blocks

    def take(self) -> None:
        """Copy them all. On the training thread, after every step, where they `stand`."""
        self._taken = b"".join(self._words)
        if self._others:
            torch._foreach_copy_(self._others_into, self._others)

    def tensors(self) -> list[torch.Tensor]:
        """The copies, each time the same tensors. While nobody takes."""
        if self._made is not self._taken:
            at = 0
            for tensor in self._into:
                ctypes.memmove(tensor.data_ptr(), self._taken[at : at + tensor.nbytes], tensor.nbytes)
                at += tensor.nbytes
            self._made = self._taken
        return self._copies


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its bytes lie one behind the other on the host, as they are."""
    lazy = tensor.is_conj() or tensor.is_neg()
    return tensor.is_cpu and tensor.numel() > 0 and tensor.is_contiguous() and not lazy
