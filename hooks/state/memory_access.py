"""Checks of memory: whether a tensor's bytes are at its address, as which dtype torch can copy them, and how much the host has left.

Code that reads memory by address calls these checks first.

Two kinds of tensor look like any other and have no bytes at their address. Reading them ends the process:

- wrapper subclasses (`_make_wrapper_subclass`: torchao's 8-bit moments, DTensor), whose bytes are in inner tensors;
- a tensor whose storage was resized to 0, as FSDP frees a gathered weight.
"""

from __future__ import annotations

from pathlib import Path

import torch

#: Exactly these types: a subclass may keep its bytes anywhere.
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def unreadable(tensor: torch.Tensor) -> str:
    """Return why this tensor's bytes cannot be read by address; "" if all of them can."""
    kind = type(tensor)
    if kind not in _PLAIN:
        return f"a {kind.__module__}.{kind.__qualname__}, a subclass of Tensor whose value is not in its own bytes alone"
    if tensor.layout is not torch.strided:
        return f"of layout {tensor.layout}"
    return lack(tensor)


def lack(tensor: torch.Tensor) -> str:
    """Return which bytes a strided tensor's storage lacks; "" if the storage holds them all."""
    if tensor.numel() == 0:
        return ""
    storage = tensor.untyped_storage()
    last = tensor.storage_offset() + sum(
        (n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)
    )
    need, held = (last + 1) * tensor.itemsize, storage.nbytes()
    if held < need or storage.data_ptr() == 0:
        return f"a tensor that needs {need} bytes of a storage that holds {held if storage.data_ptr() else 0}"
    return ""


def expanded(tensor: torch.Tensor) -> bool:
    """Return whether several elements share one place in memory (`expand`).

    Such a tensor can be read, but torch refuses to write to it.
    """
    return tensor.numel() > 0 and any(
        n > 1 and not s for n, s in zip(tensor.shape, tensor.stride(), strict=True)
    )


#: Torch stores integers of fewer than 8 bits in bytes, and has no copy for them.
_NO_COPY = {getattr(torch, f"{sign}int{bits}", None) for sign in ("", "u") for bits in range(1, 8)}


def copyable(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or the same memory as a dtype that torch can copy."""
    return tensor.view(torch.uint8) if tensor.dtype in _NO_COPY else tensor


def copy_into(here: torch.Tensor, saved: torch.Tensor) -> None:
    """Give `here` the restored values, unless the restore has read them straight into its memory."""
    if here.data_ptr() != saved.data_ptr() or here.device != saved.device:
        with torch.no_grad():
            copyable(here.detach()).copy_(copyable(saved))


# --- the host's memory ---

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = Path("/sys/fs/cgroup")


def available_memory(meminfo: Path = _MEMINFO, cgroups: Path = _CGROUPS) -> int:
    """Return the bytes that this process can take without swapping or being killed.

    This is the machine's number, or the container's if that is less. MemAvailable is that of the whole machine. In a pod
    of 32 GiB on a machine of 512 GiB, a copy that fits the machine would get training killed. (docs.kernel.org: proc.rst,
    cgroup-v2.rst "memory.max", cgroup-v1/memory.rst.)
    """
    facts = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free = int(facts["MemAvailable"].split()[0]) * 1024
    for limit, used, stat, reclaimable in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        try:
            most = (cgroups / limit).read_text().strip()
            if most.isdigit():
                counts = dict(line.split() for line in (cgroups / stat).read_text().splitlines())
                left = int(most) - int((cgroups / used).read_text()) + int(counts.get(reclaimable, 0))
                free = min(free, max(0, left))
        except OSError:
            continue  # no such limit here: the machine's number counts
    return free
