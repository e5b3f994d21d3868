"""Checks of a tensor's memory: whether its bytes are at its address, and as which dtype torch can copy them.

Code that reads memory by address calls these checks first.

Two kinds of tensor look like any other and have no bytes at their address. Reading them ends the process:

- wrapper subclasses (`_make_wrapper_subclass`: torchao's 8-bit moments, DTensor), whose bytes are in inner tensors;
- a tensor whose storage was resized to 0, as FSDP frees a gathered weight.
"""

from __future__ import annotations

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
