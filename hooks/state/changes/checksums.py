"""A checksum of some bytes of a tensor: equal for equal bytes, whether they are on the host or on a device.

On the host the checksum is CRC32: 8 GB/s per core, with the GIL released. A device sums 64-bit words within blocks of
64 KiB and across blocks. Each column has its own weight, so that swapped rows change the sum. Nothing waits for the
device's kernels. The same sums of a copy on the host cost as little.
"""

from __future__ import annotations

import ctypes
from typing import Literal, Protocol

import torch

from ...checkpoint.format.crc import crc32
from ..memory_access import copyable

#: CRC32 as a number, or sums as a tensor, on the device or on the host.
Checksum = int | torch.Tensor
Kind = Literal["crc32", "sums"]

#: 64-bit words per block.
_WORDS = 8192

_address = torch.UntypedStorage.data_ptr


class ChecksumSource(Protocol):
    """A tensor as bytes, in the order of its elements, whatever their order in memory."""

    name: str
    tensor: torch.Tensor
    nbytes: int
    kind: Kind

    def stands(self) -> bool:
        """Return whether the memory is still at its address. If not, it must not be read."""
        ...

    def whole_rows(self, nbytes: int) -> int:
        """Return the largest number of bytes up to `nbytes` that ends between rows; at least one row."""
        ...

    def read(self, start: int, stop: int) -> Checksum:
        """Return the checksum of the bytes from `start` to `stop`, both between rows."""
        ...


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


class _Kept:
    """A tensor, and the address of its memory when the source was made."""

    def __init__(self, name: str, tensor: torch.Tensor, row_bytes: int) -> None:
        self.name = name
        #: Kept, so that the memory stays allocated even when `.data` is pointed elsewhere.
        self.tensor = tensor
        self.nbytes = tensor.nbytes
        self._row_bytes = row_bytes
        self._storage = tensor.untyped_storage()
        self._block = _address(self._storage)

    def stands(self) -> bool:
        return _address(self._storage) == self._block

    def whole_rows(self, nbytes: int) -> int:
        return max(nbytes // self._row_bytes, 1) * self._row_bytes


class _Memory(_Kept):
    """Contiguous bytes on the host."""

    kind: Kind = "crc32"

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        super().__init__(name, tensor, 1)
        self._bytes = memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")

    def read(self, start: int, stop: int) -> Checksum:
        return crc32(self._bytes[start:stop])


class _Rows(_Kept):
    """Any other bytes, read by single elements if the tensor is contiguous, otherwise by entries of the first dimension."""

    def __init__(self, name: str, tensor: torch.Tensor, kind: Kind, plain: bool) -> None:
        self._rows = tensor.reshape(-1) if plain or not tensor.dim() else tensor
        super().__init__(name, tensor, tensor.nbytes // self._rows.shape[0])
        self.kind = kind

    def read(self, start: int, stop: int) -> Checksum:
        rows = self._rows[start // self._row_bytes : stop // self._row_bytes]
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
    columns[: rest.numel()] += rest
    weights = torch.arange(1, _WORDS + 1, device=flat.device)
    return torch.cat(
        [
            full_blocks.sum(1),
            (columns * weights).sum().reshape(1),
            flat[words * 8 :].sum(dtype=torch.int64).reshape(1),
        ]
    )
