"""Dtypes of torch by name: their size, and their form in a safetensors file.

The table holds names only, so that manifests are read and merged without torch. Some dtypes are missing from
safetensors, or are recent there: its C64 and float8 variants came with 0.6 and 0.7, and readers in the field are
older. Such a dtype is stored as its bytes (U8), and the manifest keeps the name. Quantized dtypes carry scale and
zero point beside their bytes, so they are refused by name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ....providers.errors import StateError

if TYPE_CHECKING:
    import torch

#: Bytes of one element, by the name that torch prints, without "torch.".
ITEMSIZE: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
    "complex128": 16,
    "complex64": 8,
    "complex32": 4,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    "bits16": 2,
    **{f"bits{kind}": 1 for kind in ("1x8", "2x4", "4x2", "8")},
    **{f"{sign}int{bits}": 1 for sign in ("", "u") for bits in range(1, 8)},
}

QUANTIZED = frozenset({"qint8", "quint8", "qint32", "quint4x2", "quint2x4"})
#: All dtypes as values: a quantized one may stand in a dict, although no tensor of it is saved.
DTYPES = QUANTIZED | ITEMSIZE.keys()

_SAFETENSORS = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}


def safetensors_form(dtype: str, shape: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """Return the dtype in a safetensors header for a piece of this dtype, and the shape in units of that dtype."""
    if (word := _SAFETENSORS.get(dtype)) is not None:
        return word, tuple(shape)
    size = ITEMSIZE[dtype]
    return "U8", (*shape[:-1], shape[-1] * size) if shape else (size,)


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name that a manifest keeps.

    Raises:
        StateError: tensors of this dtype cannot be saved.
    """
    name = str(dtype).removeprefix("torch.")
    if name in QUANTIZED:
        raise StateError(
            f"dtype {name} cannot be saved: a quantized tensor's scale is not in its bytes; "
            "save tensor.int_repr() with its scale and zero point [SG401]"
        )
    if name not in ITEMSIZE:
        raise StateError(
            f"dtype {name} is unknown to this version of spotguard; cast the tensor to a known one"
        )
    return name


def torch_dtype(name: str, known: Collection[str] = ITEMSIZE) -> torch.dtype:
    """Return the torch dtype of this name.

    Args:
        name: the name, without "torch.".
        known: the names that are looked up: by default those of tensors.

    Raises:
        StateError: this torch has no dtype of that name.
    """
    import torch

    dtype = getattr(torch, name, None) if name in known else None
    if not isinstance(dtype, torch.dtype):
        raise StateError(
            f"dtype {name!r} is not in torch {torch.__version__}; restore with the torch that saved it"
        )
    return dtype
