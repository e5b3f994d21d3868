"""Short texts for values, equal exactly if the values are equal: plain values verbatim, tensors by checksum."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from ..checkpoint.format.crc import crc32
from ..state.inventory.inner_tensors import inner
from ..state.inventory.objects import generator_state, is_array, is_generator
from ..state.sharding.dtensor import local

#: Longest plain value, in characters, that is shown in full. A longer one is cut, with a checksum of the full text.
_SHOWN = 60
#: Largest unregistered tensor or array, in bytes, that is read in full.
_WHOLE = 64 * 2**20
#: Number of pieces, and bytes of each, that are read of a larger one.
_PIECES, _PIECE = 64, 2**16

ATOMS = (bool, int, float, complex, str, bytes, type(None))


def of_tensor(tensor: torch.Tensor, *, sampled: bool = False) -> str:
    """Return type, shape and checksum of a tensor; a single number is shown verbatim. A DTensor counts by its local shard.

    Args:
        sampled: read only pieces of a large tensor.
    """
    try:
        here = local(tensor.detach())
        kind = str(here.dtype).removeprefix("torch.")
        if inside := inner(here):
            texts = [f"{each.path} {of_tensor(each.tensor, sampled=sampled)}" for each in inside]
            return f"{type(here).__name__}{list(here.shape)} {crc32(' '.join(texts).encode()):08x}"
        if here.layout is not torch.strided or here.device.type == "meta":
            return f"{kind}{list(here.shape)} {here.layout} on {here.device.type}"
        if here.numel() == 1 and not here.is_complex() and kind in _NUMBERS:
            return f"{kind} {here.item()!r}"
        flat = here.cpu().contiguous().reshape(-1)
        data = memoryview(flat.view(torch.uint8).numpy().data) if flat.numel() else memoryview(b"")
        return f"{kind}{list(here.shape)} {_crc(data, sampled):08x}"
    # The tensor has no bytes to read: it is quantized, fake, freed, or of a lazy module.
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        return f"{type(tensor).__name__} without bytes ({type(error).__name__})"


def address(tensor: torch.Tensor) -> int:
    """Return the address of the tensor's first element; 0 if the tensor has no memory to share with another one."""
    try:
        return tensor.data_ptr() if tensor.numel() else 0
    except (RuntimeError, ValueError):  # sparse, fake, freed; of a lazy module before its first input
        return 0


_NUMBERS = frozenset(
    {"float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"}
)


def of_text(text: str) -> str:
    """Return the text itself, or its first 60 characters and a checksum."""
    if len(text) <= _SHOWN:
        return text
    return f"{text[:_SHOWN]}… {crc32(text.encode(errors='surrogatepass')):08x}"


def of_array(array: Any) -> str:
    """Return type, shape and checksum of a numpy array; an array of objects is shown as text."""
    if array.dtype.hasobject:
        return of_text(repr(array.tolist()))
    if array.size == 1:
        return f"{array.dtype} {array.reshape(-1)[0].item()!r}"
    data = memoryview(array.tobytes())
    return f"{array.dtype}{list(array.shape)} {_crc(data, sampled=True):08x}"


def _crc(data: memoryview, sampled: bool) -> int:
    size = len(data)
    if not sampled or size <= _WHOLE:
        return int(crc32(data))
    crc = size & 0xFFFFFFFF
    for piece in range(_PIECES):
        at = (size - _PIECE) * piece // (_PIECES - 1)
        crc = crc32(data[at : at + _PIECE], crc)
    return int(crc)


def of_any(value: Any, depth: int = 4) -> str:
    """Return one text for nested containers of tensors and plain values, such as a batch or a generator's state."""
    return of_text(_text(value, depth))


def _text(value: Any, depth: int) -> str:
    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if is_array(value, scalars=True):
        return of_array(value)
    if isinstance(value, ATOMS):
        return repr(value)
    if depth == 0:
        return type(value).__name__
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_text(item, depth - 1)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_text(item, depth - 1) for item in value) + "]"
    fields = getattr(value, "__dict__", None)
    return f"{type(value).__name__} {_text(fields, depth - 1)}" if fields else type(value).__name__


def of_generator(value: object) -> str | None:
    """Return the state of a script's own random number generator; None if `value` is not one."""
    if not is_generator(value) or (state := generator_state(value)) is None:
        return None
    if isinstance(state, torch.Tensor):
        return of_tensor(state)
    return of_text(repr(state) if isinstance(value, random.Random) else _text(state, 4))


def of_generators() -> dict[str, str]:
    """Return checksums of the generators that spotguard always saves, by name. It draws no random number."""
    states = {"python": repr(random.getstate()), "torch": of_tensor(torch.get_rng_state())}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = _text(numpy.random.get_state(), 4)
    if torch.cuda.is_initialized():
        for number, state in enumerate(torch.cuda.get_rng_state_all()):
            states[f"cuda:{number}"] = of_tensor(state)
    return {name: f"{crc32(text.encode()):08x}" for name, text in states.items()}
