"""Readers of the values of numpy and torch, for `decoder`. Each can also do without the library, for whoever only checks."""

from __future__ import annotations

import base64
import re
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from .....providers.errors import StateError
from ..boxes import steps_in
from ..dtypes import DTYPES, torch_dtype

if TYPE_CHECKING:
    import torch

#: A number's letters, a word's letter and length, or a time and its count of units.
_NUMPY_DTYPE = re.compile(
    r"[<>|=](?:([?a-zA-Z]|[biufc]\d{1,2})|([SU])(0|[1-9]\d{0,9})|[mM]8(?:\[([1-9]\d{0,9})?(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)",
    re.ASCII,
)
#: The form in `struct` of each number.
_NUMPY_NUMBERS = {
    **{letter: letter for letter in "?bBhHiIqQefd"},
    "l": "q",
    "L": "Q",
    "F": "2f",
    "D": "2d",
    "b1": "?",
    "i1": "b",
    "i2": "h",
    "i4": "i",
    "i8": "q",
    "u1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "Q",
    "f2": "e",
    "f4": "f",
    "f8": "d",
    "c8": "2f",
    "c16": "2d",
}
#: The dimensions of an array, and the bytes that it would have if none of its sizes were 0: numpy's own limits or less.
_MAX_DIMS, _MOST_BYTES = 64, 2**62
#: numpy's NaT in ticks, which equals nothing.
_NOT_A_TIME = -(2**63)
#: torch has no number above 127, and reads "cuda:128" as another one.
_DEVICE = re.compile(r"[a-z]{1,20}(:(\d|[1-9]\d|1[01]\d|12[0-7]))?", re.ASCII)


class _ValueDecoder(Protocol):
    """The part of `decoder.Decoder` that this module uses. `Decoder` in turn uses this module."""

    give_tensor: Callable[[str], torch.Tensor]

    def decode(self, raw: Any, depth: int) -> Any: ...


class TensorOutline:
    """A tensor's dtype and shape, in place of the tensor: for a reader that only asks whether the state can be read.

    Args:
        dtype: dtype by torch's name, without "torch.".
        shape: shape of the global tensor.
    """

    __slots__ = ("dtype", "shape")

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        self.dtype = dtype
        self.shape = shape


@dataclass(slots=True)
class ArrayOutline:
    """A numpy array's dtype and shape, in place of the array. As an array, it is no key of a dict, and in no set."""

    dtype: str
    shape: tuple[int, ...]


def form_of(tensor: torch.Tensor | TensorOutline) -> tuple[str, tuple[int, ...]]:
    """Return the dtype by torch's name, without "torch.", and the shape of a tensor or of its outline."""
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


class ForeignReader(NamedTuple):
    """The reader of one "$" word, in two halves, so that a checkpoint can be judged without the library of its values.

    `parse` alone decides whether the JSON can be read: it imports nothing, and raises `Malformed`. The other two get its result.
    """

    parse: Callable[[_ValueDecoder, dict[str, Any], int], tuple[Any, ...]]
    #: Makes the value, by its library.
    make: Callable[..., Any]
    #: Makes a value that is equal to another, and has a hash, if the real ones are and have: a set must not hold one twice.
    outline: Callable[..., Any]


class _Likeness(tuple[Any, ...]):
    """Outline of a value by its word and fields. It equals no tuple's own value, as none begins with such a word."""


#: Subclasses, because `exactly` must not take the outline of a numpy scalar for a plain number.
_LIKE: dict[type, type] = {
    kind: type(f"_{kind.__name__}", (kind,), {}) for kind in (int, float, complex, str, bytes, tuple)
}


def _like(value: Any) -> Any:
    return _LIKE[int if type(value) is bool else type(value)](value)


def _likeness(word: str) -> Callable[..., Any]:
    return lambda *fields: _Likeness((word, *fields))


def _itemsize(word: Any) -> int:
    """Return the bytes of one element of a numpy dtype. Only the words that the encoder writes are read: never "O"."""
    if (match := _NUMPY_DTYPE.fullmatch(exactly(word, str))) is not None:
        number, kind, letters, count = match.groups()
        if number is not None:
            size = struct.calcsize(f"<{_NUMPY_NUMBERS[number]}") if number in _NUMPY_NUMBERS else -1
        elif kind is not None:
            size = int(letters) * (4 if kind == "U" else 1)
        else:
            size = 8 if int(count or 1) < 2**31 else -1
        if 0 <= size < 2**31:
            return size
    raise Malformed(f"{word[:40]!r} is not a numpy dtype that spotguard saves")


def _numpy_dtype(decoder: _ValueDecoder, raw: dict[str, Any], depth: int) -> tuple[str]:
    _itemsize(raw["name"])
    return (raw["name"],)


def _ndarray(
    decoder: _ValueDecoder, raw: dict[str, Any], depth: int
) -> tuple[str, tuple[int, ...], str, bytes, torch.Tensor | None]:
    word, order = raw["dtype"], exactly(raw["order"], str)
    itemsize, shape = _itemsize(word), tuple([exactly(size, int) for size in exactly(raw["shape"], list)])
    stored = decoder.give_tensor(exactly(raw["name"], str)) if "name" in raw else None
    data = unbase64(raw) if stored is None else b""
    size = len(data)
    if stored is not None:
        dtype, sizes = form_of(stored)
        if dtype != "uint8" or len(sizes) != 1:
            raise Malformed(f"an array whose bytes are a {dtype} tensor of {sizes[:8]}")
        size = sizes[0]
    most = prod([max(each, 1) for each in shape]) * itemsize
    if (
        min(shape, default=0) < 0
        or prod(shape) * itemsize != size
        or not 0 < most < _MOST_BYTES
        or len(shape) > _MAX_DIMS
    ):
        raise Malformed(f"an array of shape {list(shape[:8])} with {size} bytes")
    if order not in ("C", "F"):
        raise Malformed(f"an array in order {order[:40]!r}")
    return word, shape, order, data, stored


def _make_ndarray(
    word: str, shape: tuple[int, ...], order: Any, data: bytes, stored: torch.Tensor | None
) -> Any:
    import numpy

    dtype = numpy.dtype(word)
    if stored is not None:
        if stored.is_meta:
            return numpy.broadcast_to(numpy.empty((), dtype), shape)  # an outline has no memory
        # Share the tensor's memory, because its bytes may come later.
        return stored.detach().numpy().view(dtype).reshape(shape, order=order)
    # Copy, because the value must be writable, as the saved one was.
    if not data:
        return numpy.empty(shape, dtype, order)
    return numpy.frombuffer(data, dtype).reshape(shape, order=order).copy(order)


def _numpy_scalar(decoder: _ValueDecoder, raw: dict[str, Any], depth: int) -> tuple[str, bytes]:
    word, data = raw["dtype"], unbase64(raw)
    # Words have types of their own ("numpy.str_").
    if len(data) != _itemsize(word) or word[1] in "SU":
        raise Malformed(f"a {word} of {len(data)} bytes")
    return word, data


def _make_scalar(word: str, data: bytes) -> Any:
    import numpy

    return numpy.frombuffer(data, word)[0]


def _outline_scalar(word: str, data: bytes) -> Any:
    order = "<" if word[0] == "<" or (word[0] in "|=" and sys.byteorder == "little") else ">"
    if word[1] in "mM":
        (ticks,) = struct.unpack(f"{order}q", data)
        return _Likeness((word, ticks)) if ticks != _NOT_A_TIME else object()
    parts = struct.unpack(f"{order}{_NUMPY_NUMBERS[word[1:]]}", data)
    return _like(parts[0] if len(parts) == 1 else complex(*parts))


def _tensor(decoder: _ValueDecoder, raw: dict[str, Any], depth: int) -> tuple[torch.Tensor, Any]:
    """Read a tensor and the steps of its dimensions in memory; None where they are those of their order."""
    tensor = decoder.give_tensor(exactly(raw["name"], str))
    if "order" not in raw:
        return tensor, None
    order, sizes = exactly(raw["order"], list, type(None)), form_of(tensor)[1]
    if order is None:
        return tensor, [0] * len(sizes)
    if sorted(exactly(dim, int) for dim in order) != list(range(len(sizes))):
        raise Malformed(f"a tensor of {len(sizes)} dimensions in the order {order[:8]}")
    return tensor, steps_in(order, sizes)


def _make_tensor(tensor: torch.Tensor, steps: Any) -> torch.Tensor:
    """Return the tensor. An outline gets its steps, and 0 for memory with gaps; the memory of any other was made by those."""
    return tensor.as_strided(tensor.shape, steps) if steps is not None and tensor.is_meta else tensor


def _parameter(decoder: _ValueDecoder, raw: dict[str, Any], depth: int) -> tuple[torch.Tensor, Any, bool]:
    tensor, steps = _tensor(decoder, raw, depth)
    wants = exactly(raw["requires_grad"], bool)
    dtype, _ = form_of(tensor)
    if wants and not dtype.startswith(("float", "bfloat", "complex")):
        raise Malformed(f"a parameter of {dtype} that requires a gradient")
    return tensor, steps, wants


def _make_parameter(tensor: torch.Tensor, steps: Any, wants: bool) -> Any:
    import torch

    return torch.nn.Parameter(_make_tensor(tensor, steps), requires_grad=wants)


def _torch_size(decoder: _ValueDecoder, raw: dict[str, Any], depth: int) -> tuple[tuple[int, ...]]:
    return (tuple([int64(size) for size in exactly(raw["items"], list)]),)


def _make_size(items: tuple[int, ...]) -> Any:
    import torch

    return torch.Size(items)


def _torch_dtype(decoder: _ValueDecoder, raw: dict[str, Any], depth: int) -> tuple[str]:
    if exactly(raw["name"], str) not in DTYPES:
        raise Malformed(f"{raw['name'][:40]!r} is not a dtype of torch")
    return (raw["name"],)


def _torch_device(decoder: _ValueDecoder, raw: dict[str, Any], depth: int) -> tuple[str]:
    if _DEVICE.fullmatch(exactly(raw["name"], str)) is None:
        raise Malformed(f"{raw['name'][:40]!r} is not a device")
    return (raw["name"],)


def _make_device(name: str) -> Any:
    import torch

    try:
        return torch.device(name)
    except RuntimeError as error:  # a backend of another machine: the checkpoint is not damaged
        raise StateError(
            f"the saved state holds the device {name!r}, which torch {torch.__version__} does not have here; restore with the "
            "torch that saved it"
        ) from error


def _make(module: str, name: str) -> Callable[..., Any]:
    return lambda field: getattr(import_module(module), name)(field)


FOREIGN_READERS: dict[str, ForeignReader] = {
    "tensor": ForeignReader(_tensor, _make_tensor, lambda tensor, steps: tensor),
    "parameter": ForeignReader(
        _parameter, _make_parameter, lambda tensor, steps, wants: TensorOutline(*form_of(tensor))
    ),
    "numpy.ndarray": ForeignReader(
        _ndarray, _make_ndarray, lambda word, shape, *rest: ArrayOutline(word, shape)
    ),
    "numpy.scalar": ForeignReader(_numpy_scalar, _make_scalar, _outline_scalar),
    "numpy.str_": ForeignReader(
        lambda decoder, raw, depth: (exactly(decoder.decode(raw["value"], depth), str),),
        _make("numpy", "str_"),
        _like,
    ),
    "numpy.bytes_": ForeignReader(
        lambda decoder, raw, depth: (unbase64(raw),), _make("numpy", "bytes_"), _like
    ),
    "numpy.dtype": ForeignReader(
        _numpy_dtype,
        _make("numpy", "dtype"),
        _likeness("numpy.dtype"),
    ),
    "torch.Size": ForeignReader(_torch_size, _make_size, _like),
    "torch.dtype": ForeignReader(
        _torch_dtype, lambda name: torch_dtype(name, DTYPES), _likeness("torch.dtype")
    ),
    "torch.device": ForeignReader(_torch_device, _make_device, _likeness("torch.device")),
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
