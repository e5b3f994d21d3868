"""Values of numpy and torch, for `encoder`, which loads neither library itself; `foreign_readers` reads them.

A numpy value keeps its exact dtype (`longlong` is not `int64`) and its bytes. A torch tensor goes to the caller,
which stores it beside the JSON and returns it by name. The bytes of a large array go the same way if torch is
loaded.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ..boxes import order_of
from ..dtypes import DTYPES

if TYPE_CHECKING:
    import numpy as np
    import torch

#: Letters of dtypes whose bytes are the whole value. Excluded are objects (pickle), structured dtypes, and long
#: doubles, whose padding bytes differ between machines.
_NUMPY_KINDS = "?bhilqBHILQefdFDSUmM"
#: Bytes from which an array is stored as a tensor and not as text. A replay buffer in a manifest would exist
#: several times in memory, and the plan of a save would count none of it.
LARGE_ARRAY = 64 * 2**10


class _ValueEncoder(Protocol):
    """The part of `encoder.Encoder` that this module uses. `Encoder` in turn uses this module."""

    take_tensor: Callable[[torch.Tensor], str]

    def encode(self, value: Any, path: str) -> Any: ...

    def refusal(self, value: Any, path: str, advice: str) -> Exception: ...


def encode_foreign(value: Any, path: str, encoder: _ValueEncoder) -> Any:
    """Return the value as JSON, or None if it belongs to neither library, or is refused as a subclass."""
    if (torch := sys.modules.get("torch")) is not None:
        if isinstance(value, torch.Tensor):
            return _tensor(torch, value, path, encoder)
        kind = type(value)
        if kind is torch.Size:
            return {"$": "torch.Size", "items": list(value)}
        if kind is torch.dtype:
            if (name := str(value).removeprefix("torch.")) not in DTYPES:
                raise encoder.refusal(value, path, "it is unknown to this version of spotguard: leave it out")
            return {"$": "torch.dtype", "name": name}
        if kind is torch.device:
            return {"$": "torch.device", "name": str(value)}
    if (numpy := sys.modules.get("numpy")) is not None:
        if type(value) is numpy.ndarray:
            return _array(numpy, torch, value, path, encoder)
        # As raw bytes of their dtype, the next two types would lose the NULs at their end.
        if type(value) is numpy.str_:
            return {"$": "numpy.str_", "value": encoder.encode(str(value), path)}
        if type(value) is numpy.bytes_:
            return {"$": "numpy.bytes_", "base64": base64.b64encode(value).decode()}
        if isinstance(value, numpy.generic) and type(value).__module__ == "numpy":
            word = _dtype_word(numpy, value.dtype, value, path, encoder)
            return {"$": "numpy.scalar", "dtype": word, "base64": base64.b64encode(value.tobytes()).decode()}
        if isinstance(value, numpy.dtype):
            return {"$": "numpy.dtype", "name": _dtype_word(numpy, value, value, path, encoder)}
    return None


def _tensor(torch: Any, value: Any, path: str, encoder: _ValueEncoder) -> Any:
    kind = type(value)
    if kind is torch.nn.Parameter:
        name = encoder.take_tensor(value)
        return {"$": "parameter", "name": name, **_order(value), "requires_grad": value.requires_grad}
    if kind is not torch.Tensor and not kind.__module__.startswith("torch.distributed."):
        raise encoder.refusal(value, path, "save the plain tensors that it is made of")
    if value.layout is not torch.strided:
        raise encoder.refusal(value, path, f"its layout is {value.layout}: save its indices and values")
    return {"$": "tensor", "name": encoder.take_tensor(value), **_order(value)}


def _order(value: Any) -> dict[str, Any]:
    """Return the order of a tensor's dimensions in memory, if it is not their own; None for memory with gaps."""
    return {} if value.is_contiguous() else {"order": order_of(value.shape, value.stride())}


def _array(numpy: Any, torch: Any, value: Any, path: str, encoder: _ValueEncoder) -> Any:
    if not value.dtype.itemsize:
        raise encoder.refusal(value, f"{path} of {value.dtype}", "its elements have no bytes: leave it out")
    order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
    word = _dtype_word(numpy, value.dtype, value, path, encoder)
    raw = {"$": "numpy.ndarray", "dtype": word, "shape": list(value.shape), "order": order}
    if torch is None or value.nbytes < LARGE_ARRAY:
        return {**raw, "base64": base64.b64encode(value.tobytes(order)).decode()}
    flat = value.ravel(order)
    flat = flat if flat.flags.writeable else flat.copy()  # torch has no read-only tensors
    return {**raw, "name": encoder.take_tensor(torch.from_numpy(flat.view(numpy.uint8)))}


def _dtype_word(numpy: Any, dtype: np.dtype[Any], value: Any, path: str, encoder: _ValueEncoder) -> str:
    if dtype.char not in _NUMPY_KINDS or dtype.metadata:
        raise encoder.refusal(
            value, f"{path} of dtype {str(dtype)[:40]}", "use an array of plain numbers, or strings"
        )
    word = dtype.str
    if numpy.dtype(word).char != dtype.char:
        word = word[0] + dtype.char  # longlong is as wide as int64, but another type
    return str(word)
