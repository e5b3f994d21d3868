"""Host buffers that objects are put together in, and how tensors get into them and out.

A buffer is reused for one object after the other, so a save touches no fresh page after the first: a copy into
fresh memory runs at 1.9 GB/s, into touched memory at 11 (measured). If the process uses a GPU, buffers are pinned.

Plain memory is copied in by memmove(3), the GIL let go: torch's own copy would start a team of OpenMP threads for each
of ours, beside the team that training computes with.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

import torch

from ...checkpoint.format.boxes import Box, run
from ...checkpoint.format.crc import crc32
from ..memory_access import copyable, unreadable
from .streams import CopyStreams

# Torch registers what it makes at a function's first call with libc, to be unmade at exit, under a lock that a fork copies in
# its present state. The saver thread made its first buffer while training began, and a data loader's worker that was forked at
# that instant hung for ever in a first call of its own (1 of 65 on a busy machine). So the first call is made on import.
torch.frombuffer(bytearray(2**16), dtype=torch.uint8).zero_()  # large enough to be filled as a buffer is


class HostBuffer:
    """One reused buffer of `size` bytes, which implements `commit.upload.workers.Buffer`. One thread uses it at a time.

    Args:
        size: bytes.
        touched: touch every page now, so that no save waits for one. A restore can touch pages while its bytes arrive.
    """

    def __init__(self, size: int, *, touched: bool = True) -> None:
        # "cpu" is explicit, because a script may have set another default device.
        if torch.cuda.is_initialized():
            self._bytes = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
            self._view = memoryview(self._bytes.numpy())  # type: ignore[arg-type]
        else:
            # No bytearray: filling one holds the GIL, for 5 ms per 8 MiB of fresh pages (measured).
            held = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._bytes = torch.frombuffer(held, dtype=torch.uint8)
            self._view = memoryview(held)
        if touched:
            self._bytes.zero_()
        self._address = self._bytes.data_ptr()
        self._streams = CopyStreams()

    @property
    def size(self) -> int:
        return len(self._view)

    def view(self, start: int, end: int) -> memoryview:
        return self._view[start:end]

    def write(self, start: int, data: bytes) -> None:
        self._view[start : start + len(data)] = data

    def copy_in(self, source: torch.Tensor, start: int, dtype: torch.dtype | None = None) -> int:
        """Copy a box of a tensor to `start`, row-major, without the GIL. Return the CRC32 of its bytes.

        Args:
            dtype: dtype to which the elements are rounded on the way, a bounded part at a time.
        """
        if source.numel() == 0:
            return 0
        dtype = source.dtype if dtype is None else dtype
        end = start + source.numel() * dtype.itemsize
        if source.is_cuda:
            # The rounded values are made on the stream that copies them, or the copy would take them before they are there.
            with self._streams.on(source.device):
                self._copy_as(dtype, source, start, end)
            self._streams.finish()
        else:
            self._copy_as(dtype, source, start, end)
        return crc32(self._view[start:end])

    @contextmanager
    def aside(self, devices: Iterable[torch.device]) -> Iterator[None]:
        """Launch kernels of this block on streams of the buffer's own: on a default stream they would wait for training's."""
        with ExitStack() as streams:
            for device in devices:
                streams.enter_context(self._streams.on(device))
            yield

    def copy_out(self, start: int, end: int, target: torch.Tensor, dtype: torch.dtype) -> None:
        """Copy the bytes from `start` to `end`, row-major elements of `dtype`, into a box of a tensor."""
        if _plain(target) and target.dtype == dtype and not unreadable(target):
            if end > len(self._view) or end - start != target.nbytes:  # memmove asks nobody
                raise ValueError(f"bytes {start} to {end} are not those of a tensor of {target.nbytes}")
            move = _move_held if end - start < _SMALL else ctypes.memmove
            move(target.data_ptr(), self._address + start, end - start)
            return
        source = self._bytes[start:end]
        if start % dtype.itemsize:
            source = source.clone()  # a view of another dtype needs an aligned start
        with torch.no_grad():
            copyable(target).copy_(copyable(source.view(dtype)).view(target.shape))

    def copy_part_out(
        self, start: int, sizes: tuple[int, ...], part: Box, target: torch.Tensor, dtype: torch.dtype
    ) -> None:
        """As `copy_out`, of a part of the box of `sizes` whose row-major elements begin at `start`."""
        first = run(part, sizes)
        if first is not None:
            start += first * dtype.itemsize
            self.copy_out(start, start + part.numel * dtype.itemsize, target, dtype)
            return
        source = self._bytes[start : start + prod(sizes) * dtype.itemsize]
        if start % dtype.itemsize:
            source = source.clone()
        with torch.no_grad():
            copyable(target).copy_(copyable(box(source.view(dtype).view(sizes), *part)))

    def _copy_as(self, dtype: torch.dtype, source: torch.Tensor, start: int, end: int) -> None:
        if source.dtype == dtype:
            self._copy(source, start, end)
            return
        for part in _parts(source.detach(), _ROUNDED // dtype.itemsize):
            after = start + part.numel() * dtype.itemsize
            self._copy(part.to(dtype), start, after)
            start = after

    def _copy(self, source: torch.Tensor, start: int, end: int) -> None:
        lazy = source.is_conj() or source.is_neg()
        if _plain(source):
            if end > len(self._view):  # memmove asks nobody
                raise ValueError(f"bytes {start} to {end} do not fit a buffer of {len(self._view)}")
            move = _move_held if end - start < _SMALL else ctypes.memmove
            move(self._address + start, source.data_ptr(), end - start)
            return
        into, source = self._bytes[start:end], copyable(source)
        if not (source.is_cpu or lazy or source.is_contiguous()) and _is_dense(source):
            # channels_last, or a whole transposed matrix. The host puts the elements in order: on the device that takes memory
            # and a kernel, and a device that is full, or hangs, gives neither.
            into.copy_(as_bytes(source.as_strided((source.numel(),), (1,))))
            _put_in_order(into.numpy(), source)
            return
        if lazy:
            source = source.resolve_conj().resolve_neg()
        if not source.is_contiguous() and start % source.itemsize:
            source = source.contiguous()  # a strided copy needs an aligned target
        if source.is_contiguous():
            into.copy_(as_bytes(source), non_blocking=True)
        else:
            into.view(source.dtype).view(source.shape).copy_(source, non_blocking=True)


def _plain(tensor: torch.Tensor) -> bool:
    """Return whether the bytes lie in host memory, unchanged and in the order of the elements."""
    return tensor.is_cpu and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


def _put_in_order(memory: Any, source: torch.Tensor) -> None:
    """Put the elements of `source`, which are in `memory` in their order on the device, into row-major order.

    By NumPy, because torch's copy would start a team of threads in each worker.
    """
    import numpy as np

    strides = [stride * source.itemsize for stride in source.stride()]
    elements = np.dtype((np.void, source.itemsize))
    there = np.lib.stride_tricks.as_strided(memory.copy().view(elements), tuple(source.shape), strides)
    np.copyto(memory.view(elements).reshape(tuple(source.shape)), there)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the elements lie side by side in memory, each once, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


#: Bytes below which a copy holds the GIL. Copying this much takes 10 µs; getting the GIL back from a training thread in pure
#: Python takes 5 ms, for each of ten thousand small tensors.
_SMALL = 2**16
_move_held = ctypes.PyDLL(None).memmove
_move_held.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_move_held.restype = ctypes.c_void_p


#: Bytes that are rounded at once: memory beside the buffers, on the device or the host, for each thread. Torch releases the
#: GIL for each part and may wait long to get it back, so the parts are not smaller.
_ROUNDED = 2**20


def _parts(tensor: torch.Tensor, most: int) -> Iterator[torch.Tensor]:
    """Split a tensor into parts of at most `most` elements, in row-major order."""
    if tensor.numel() <= most:
        yield tensor
    elif tensor.is_contiguous():
        yield from tensor.view(-1).split(most)
    else:
        rows = most * len(tensor) // tensor.numel()
        for part in tensor.split(rows) if rows else tensor.unbind():
            yield from _parts(part, most)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's memory as a flat tensor of bytes."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def box(tensor: torch.Tensor, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
    """The part of a tensor that a chunk stands for."""
    for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        if offset or size != tensor.shape[dim]:
            tensor = tensor.narrow(dim, offset, size)
    return tensor
