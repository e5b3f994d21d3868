"""Host memory for copies of tensors on devices."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import weakref
from typing import Any

import torch

from .cuda_graphs import work_beside_captures

log = logging.getLogger("spotguard")


def host_tensor(like: torch.Tensor) -> torch.Tensor:
    """Return host memory for a copy of `like`: pinned memory if `like` is on a CUDA device."""
    return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=like.is_cuda)


#: `cudaHostRegisterPortable` of the CUDA runtime: pinned for all devices.
_PORTABLE = 1


def host_memory(nbytes: int, device: torch.device | None) -> tuple[torch.Tensor, bool]:
    """Return host memory for copies of tensors as bytes, each page touched, and whether it is pinned.

    Torch's own pinned memory takes the next power of two for each tensor: up to twice the bytes of the state, for which
    nobody has planned. So the pages come from the kernel, and the driver pins them as they are. Call this on a thread that
    ends afterwards: the runtime keeps the error of a refused pin for the thread's next kernel.

    Args:
        nbytes: bytes; at least one.
        device: the CUDA device whose process pins the memory, for all devices; None for memory that is not pinned. Another
            device would get a context of this process, of hundreds of MB.
    """
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A fork would copy pinned pages at once (138 ms for 256 MiB), and each later write of this process would copy others.
    pages.madvise(mmap.MADV_DONTFORK)
    memory = torch.frombuffer(pages, dtype=torch.uint8)
    # Without the GIL, and without a team of threads beside training's.
    ctypes.memset(memory.data_ptr(), 0, nbytes)
    if device is None:
        return memory, False
    work_beside_captures()
    with torch.cuda.device(device):
        runtime: Any = torch.cuda.cudart()
        if refused := int(runtime.cudaHostRegister(memory.data_ptr(), nbytes, _PORTABLE)):
            log.debug("the driver does not pin %d bytes of host memory: error %d", nbytes, refused)
            return memory, False
    unpin = weakref.finalize(memory.untyped_storage(), _unpin, os.getpid(), device, memory.data_ptr(), pages)
    unpin.atexit = False
    return memory, True


def _unpin(pid: int, device: torch.device, address: int, pages: mmap.mmap) -> None:
    """Unpin memory that no tensor uses any more. `pages` keeps it mapped until then."""
    if os.getpid() == pid:  # a forked child has neither the memory nor CUDA
        with torch.cuda.device(device):
            runtime: Any = torch.cuda.cudart()
            runtime.cudaHostUnregister(address)
