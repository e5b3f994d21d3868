"""Every dtype of torch can be written down, or is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spotguard.hooks.checkpoint.format.dtypes import (
    ITEMSIZE,
    QUANTIZED,
    dtype_name,
    safetensors_form,
    torch_dtype,
)
from spotguard.providers.errors import StateError
from tests.cases import cases

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)


@cases("dtype", DTYPES)
def test_a_dtype_of_torchs_is_known(dtype: Any) -> None:
    """By name both ways, with its bytes; a new dtype in torch fails here until it is added."""
    word = str(dtype).removeprefix("torch.")
    if word in QUANTIZED:
        with pytest.raises(StateError, match=f"dtype {word} cannot be saved.*int_repr"):
            dtype_name(dtype)
        return
    assert dtype_name(dtype) == word
    assert torch_dtype(word) is dtype
    assert ITEMSIZE[word] == dtype.itemsize


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@cases("word", ITEMSIZE)
def test_a_tensor_of_any_dtype_has_bytes(word: str) -> None:
    """A writer can view it as bytes, and a reader can view those bytes as it."""
    raw = torch.arange(2 * ITEMSIZE[word], dtype=torch.uint8)
    tensor = raw.view(torch_dtype(word))
    assert tensor.shape == (2,)
    assert torch.equal(tensor.view(torch.uint8), raw)


@pytest.mark.parametrize("word", ["nn", "Tensor", "qint8", "float33", "__doc__"])
def test_a_name_that_is_no_dtype_is_refused(word: str) -> None:
    """It may come from a file."""
    with pytest.raises(StateError, match=repr(word)):
        torch_dtype(word)


@cases("word", ITEMSIZE)
@cases("shape", [(), (3,), (2, 5), (0, 4)])
def test_a_dtype_that_safetensors_lacks_is_stored_as_bytes(word: str, shape: tuple[int, ...]) -> None:
    """The word is one of its own, and the shape in units of it has as many bytes."""
    width = {
        "F64": 8,
        "I64": 8,
        "U64": 8,
        "F32": 4,
        "I32": 4,
        "U32": 4,
        "F16": 2,
        "BF16": 2,
        "I16": 2,
        "U16": 2,
    }
    name, form = safetensors_form(word, shape)
    assert torch.Size(form).numel() * width.get(name, 1) == torch.Size(shape).numel() * ITEMSIZE[word]


@pytest.mark.parametrize(
    "word", ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
)
def test_a_file_names_a_dtype_as_safetensors_itself_does(word: str) -> None:
    """Other tools read the file by that name."""
    written = pytest.importorskip("safetensors.torch").save({"t": torch.zeros(2, dtype=torch_dtype(word))})
    header = json.loads(written[8 : 8 + int.from_bytes(written[:8], "little")])
    assert safetensors_form(word, (2,)) == (header["t"]["dtype"], (2,))
