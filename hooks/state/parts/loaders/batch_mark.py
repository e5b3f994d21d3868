"""A checksum of samples of a batch: whether a loader gives the batches of before a restart.

Only shapes count of tensors that are not on the host: reading one would wait for its device.
"""

from __future__ import annotations

import ctypes
import types
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch

from ....checkpoint.format.crc import crc32
from ...inventory.objects import attributes, is_array
from ...memory_access import copyable, unreadable

#: The most values of a batch that count, the most objects that are searched for them, and the bytes at each end of a tensor.
_VALUES, _OBJECTS, _BYTES = 32, 256, 64
_PLAIN = (bool, int, float, complex, str, bytes)
#: Objects whose attributes tell nothing of a batch.
_CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def marked(batch: Any, mark: int) -> int:
    """Return a checksum of samples of a batch and of the batches before it.

    Args:
        batch: tensors, arrays, numbers and strings, in any sequence, mapping, dataclass or object.
        mark: the checksum of the batches before it.
    """
    for _, sample in islice(_leaves(batch), _VALUES):
        mark = crc32(sample, mark)
    return mark


def leaf_of(batch: Any) -> Any:
    """Return the first tensor or array of a batch, which lives as long as the batch does; None if there is none."""
    tensors = (
        v for v, _ in _leaves(batch) if isinstance(v, torch.Tensor) or (is_array(v, scalars=True) and v.ndim)
    )
    return next(tensors, None)


def _leaves(batch: Any) -> Iterator[tuple[Any, bytes]]:
    """Yield the values in a batch, each with a sample of it."""
    waiting, seen = [batch], 0
    while waiting and seen < _OBJECTS:
        value = waiting.pop()
        seen += 1
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value[:_VALUES]
        elif (sample := _sample(value)) is not None:
            yield value, sample
        elif isinstance(value, Mapping):  # slower to ask than the others
            waiting += value.values()
        elif not isinstance(value, _CODE):
            waiting += [*attributes(value).values()][:_VALUES]


def _sample(value: Any) -> bytes | None:
    """Return bytes that tell a value from most others; None if it is none of the known kinds."""
    if isinstance(value, torch.Tensor):
        return _of_tensor(value)
    if isinstance(value, _PLAIN):
        return repr(value[:_BYTES] if isinstance(value, (str, bytes)) else value).encode()
    if value is None:
        return b""
    if not is_array(value, scalars=True):
        return None
    about = f"{value.dtype}{value.shape}".encode()
    if value.dtype.hasobject or not value.size:
        return about
    return b"".join([about, value.ravel()[:8].tobytes()[:_BYTES], value.ravel()[-8:].tobytes()[-_BYTES:]])


def _of_tensor(value: torch.Tensor) -> bytes:
    about = f"{value.dtype}{tuple(value.shape)}".encode()
    plain = value if type(value) is torch.Tensor else _inside(value)
    if plain is None or not plain.is_cpu or unreadable(plain) or not plain.numel():
        return about
    if not plain.is_contiguous():
        plain = copyable(plain.detach()[:1]).contiguous()
    # By address: the same by torch's calls takes 50 µs.
    start, count = plain.data_ptr(), min(_BYTES, plain.nbytes)
    return b"".join(
        [about, ctypes.string_at(start, count), ctypes.string_at(start + plain.nbytes - count, count)]
    )


def _inside(value: torch.Tensor) -> torch.Tensor | None:
    """Return the plain tensor that a subclass is, such as torchvision's; None if it only holds others."""
    if (
        value.layout is not torch.strided
        or type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    ):
        return None
    return value.detach().as_subclass(torch.Tensor)
