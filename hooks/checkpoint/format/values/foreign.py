"""Values of numpy and torch, for `encoder` and `decoder`; the encoder loads neither library itself.

A numpy value keeps its exact dtype (`longlong` is not `int64`) and its bytes. A torch tensor goes to the caller,
which stores it beside the JSON and returns it by name. The bytes of a large array go the same way if torch is
loaded.
"""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import torch

#: Letters of dtypes whose bytes are the whole value. Excluded are objects (pickle), structured dtypes, and long
#: doubles, whose padding bytes differ between machines.
_NUMPY_KINDS = "?bhilqBHILQefdFDSUmM"
_NUMPY_DTYPE = re.compile(r"[<>|=]([?a-zA-Z])(\d{0,9})(\[\w{1,12}(/\d{1,9})?\])?", re.ASCII)
#: Bytes from which an array is stored as a tensor and not as text. A replay buffer in a manifest would exist
#: several times in memory, and the plan of a save would count none of it.
LARGE_ARRAY = 64 * 2**10
_DEVICE = re.compile(r"[a-z]{1,20}(:\d{1,4})?", re.ASCII)


class _ValueEncoder(Protocol):
    """The part of `encoder.Encoder` that this module uses. `Encoder` in turn uses this module."""

    take_tensor: Callable[[torch.Tensor], str]

    def encode(self, value: Any, path: str) -> Any: ...

    def refusal(self, value: Any, path: str, advice: str) -> Exception: ...


class _ValueDecoder(Protocol):
    """The part of `decoder.Decoder` that this module uses. `Decoder` in turn uses this module."""

    give_tensor: Callable[[str], torch.Tensor]

    def decode(self, raw: Any, depth: int) -> Any: ...


def encode_foreign(value: Any, path: str, encoder: _ValueEncoder) -> Any:
    """Return the value as JSON, or None if it belongs to neither library, or is refused as a subclass."""
    if (torch := sys.modules.get("torch")) is not None:
        if isinstance(value, torch.Tensor):
            return _tensor(torch, value, path, encoder)
        kind = type(value)
        if kind is torch.Size:
            return {"$": "torch.Size", "items": list(value)}
        if kind is torch.dtype:
            return {"$": "torch.dtype", "name": str(value).removeprefix("torch.")}
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
        return {"$": "parameter", "name": name, "requires_grad": value.requires_grad}
    if kind is not torch.Tensor and not kind.__module__.startswith("torch.distributed."):
        raise encoder.refusal(value, path, "save the plain tensors that it is made of")
    if value.layout is not torch.strided:
        raise encoder.refusal(value, path, f"its layout is {value.layout}: save its indices and values")
    return {"$": "tensor", "name": encoder.take_tensor(value)}


def _array(numpy: Any, torch: Any, value: Any, path: str, encoder: _ValueEncoder) -> Any:
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


def _dtype(word: Any) -> np.dtype[Any]:
    import numpy

    # Accept only numpy's own names, and of these only the saved ones: numpy.dtype("O") must not come out of a file.
    if _NUMPY_DTYPE.fullmatch(exactly(word, str)) is None:
        raise Malformed(f"{word[:40]!r} is not a numpy dtype")
    dtype: np.dtype[Any] = numpy.dtype(word)
    if dtype.char not in _NUMPY_KINDS:
        raise Malformed(f"spotguard never saves dtype {word!r}")
    return dtype


def _ndarray(decoder: _ValueDecoder, raw: dict[str, Any], depth: int) -> Any:
    import numpy

    dtype = _dtype(raw["dtype"])
    shape = [exactly(size, int) for size in exactly(raw["shape"], list)]
    order = exactly(raw["order"], str)
    stored = decoder.give_tensor(exactly(raw["name"], str)) if "name" in raw else None
    data = unbase64(raw) if stored is None else b""
    size = len(data) if stored is None else stored.nbytes
    if any(size < 0 for size in shape) or prod(shape) * dtype.itemsize != size:
        raise Malformed(f"an array of shape {shape[:8]} with {size} bytes")
    if stored is not None:
        if stored.dim() != 1 or stored.itemsize != 1 or not (stored.is_cpu or stored.is_meta):
            raise Malformed(f"an array whose bytes are a tensor of {tuple(stored.shape)[:8]}")
        if stored.is_meta:
            return numpy.broadcast_to(numpy.empty((), dtype), shape)  # an outline has no memory
        # Share the tensor's memory, because its bytes may come later.
        return stored.detach().numpy().view(dtype).reshape(shape, order=order)
    # Copy, because the value must be writable, as the saved one was.
    if not data:
        return numpy.empty(shape, dtype, order)
    return numpy.frombuffer(data, dtype).reshape(shape, order=order).copy(order)


def _numpy_scalar(decoder: _ValueDecoder, raw: dict[str, Any], depth: int) -> Any:
    import numpy

    dtype, data = _dtype(raw["dtype"]), unbase64(raw)
    if len(data) != dtype.itemsize:
        raise Malformed(f"a {dtype} of {len(data)} bytes")
    return numpy.frombuffer(data, dtype)[0]


def _numpy_str(decoder: _ValueDecoder, raw: dict[str, Any], depth: int) -> Any:
    import numpy

    return numpy.str_(exactly(decoder.decode(raw["value"], depth), str))


def _numpy_bytes(decoder: _ValueDecoder, raw: dict[str, Any], depth: int) -> Any:
    import numpy

    return numpy.bytes_(unbase64(raw))


def _parameter(decoder: _ValueDecoder, raw: dict[str, Any], depth: int) -> Any:
    import torch

    tensor = decoder.give_tensor(exactly(raw["name"], str))
    wants = exactly(raw["requires_grad"], bool)
    if wants and not (tensor.is_floating_point() or tensor.is_complex()):
        raise Malformed(f"a parameter of {tensor.dtype} that requires a gradient")
    return torch.nn.Parameter(tensor, requires_grad=wants)


def _torch_size(decoder: _ValueDecoder, raw: dict[str, Any], depth: int) -> Any:
    import torch

    return torch.Size([int64(size) for size in exactly(raw["items"], list)])


def _torch_dtype(decoder: _ValueDecoder, raw: dict[str, Any], depth: int) -> Any:
    import torch

    dtype = getattr(torch, exactly(raw["name"], str), None)
    if not isinstance(dtype, torch.dtype):
        raise Malformed(f"{raw['name'][:40]!r} is not a dtype of torch {torch.__version__}")
    return dtype


def _torch_device(decoder: _ValueDecoder, raw: dict[str, Any], depth: int) -> Any:
    import torch

    if _DEVICE.fullmatch(exactly(raw["name"], str)) is None:
        raise Malformed(f"{raw['name'][:40]!r} is not a device")
    try:
        return torch.device(raw["name"])
    except RuntimeError as error:
        raise Malformed(f"{raw['name']!r} is not a device of torch {torch.__version__}") from error


FOREIGN_READERS: dict[str, Callable[[_ValueDecoder, dict[str, Any], int], Any]] = {
    "tensor": lambda decoder, raw, depth: decoder.give_tensor(exactly(raw["name"], str)),
    "parameter": _parameter,
    "numpy.ndarray": _ndarray,
    "numpy.scalar": _numpy_scalar,
    "numpy.str_": _numpy_str,
    "numpy.bytes_": _numpy_bytes,
    "numpy.dtype": lambda decoder, raw, depth: _dtype(raw["name"]),
    "torch.Size": _torch_size,
    "torch.dtype": _torch_dtype,
    "torch.device": _torch_device,
}


# --- checks for single fields: each must have the right type ---


class Malformed(Exception):
    """Error for JSON that `encode` does not write."""


def exactly(value: Any, *kinds: type) -> Any:
    """Return the value, which must have exactly one of these types."""
    if type(value) not in kinds:
        raise Malformed(
            f"{type(value).__name__} where {' or '.join(kind.__name__ for kind in kinds)} is expected"
        )
    return value


def int64(value: Any) -> int:
    """Return the integer, which must fit 64 bits: `encode` writes a larger one in hexadecimal."""
    if not -(2**63) <= exactly(value, int) < 2**63:
        raise Malformed("an integer of more than 64 bits is written as a plain number")
    return int(value)


def unbase64(raw: dict[str, Any]) -> bytes:
    return base64.b64decode(exactly(raw["base64"], str), validate=True)
