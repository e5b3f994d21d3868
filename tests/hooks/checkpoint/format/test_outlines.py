"""An outline stands for a value of numpy or torch: it is read exactly if the library makes the value, and equals what that equals."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

from spotguard.hooks.checkpoint.format.values.decoder import decode, outline  # noqa: E402
from spotguard.hooks.checkpoint.format.values.foreign_readers import TensorOutline  # noqa: E402
from spotguard.providers.errors import CheckpointError, StateError  # noqa: E402

pytestmark = pytest.mark.torch

READERS: list[Callable[..., Any]] = [decode, outline]
#: Codes of numpy's dtypes, those that are not saved among them, and what may stand behind them.
CODES = [
    *"?bBhHiIlLqQefdFDgGOVUSmMaAcnNpPrx",
    *(f"{kind}{size}" for kind in "?biufcOVUSmM" for size in range(18)),
]
UNITS = ["", "[ns]", "[25s]", "[W]", "[x]", "[2147483647s]", "[2147483648s]"]


def is_read(reader: Callable[..., Any], raw: Any, given: Any = None) -> bool:
    try:
        reader(raw, lambda name: given)
    except CheckpointError:
        return False
    return True


def scalar(word: str, size: int) -> dict[str, str]:
    return {"$": "numpy.scalar", "dtype": word, "base64": base64.b64encode(bytes(size)).decode()}


def test_numpy_makes_each_dtype_that_is_read_and_its_scalars() -> None:
    words = [f"{order}{code}{unit}" for order in "<>|=x" for code in CODES for unit in UNITS]
    read = [word for word in words if is_read(outline, {"$": "numpy.dtype", "name": word})]
    assert len(read) > 250
    for word in read:
        dtype = np.dtype(word)
        assert dtype.char in "?bhilqBHILQefdFDSUmM"
        for reader in READERS:
            assert is_read(reader, scalar(word, dtype.itemsize)) == (dtype.char not in "SU")
            assert not is_read(reader, scalar(word, dtype.itemsize + 1))
        if dtype.char not in "SUmM":
            made, like = (reader(scalar(word, dtype.itemsize), str) for reader in READERS)
            assert (made == like, hash(made)) == (True, hash(like))


@pytest.mark.parametrize(
    "shape", [[], [0], [2, 0], [0, 2**58], [2**61, 0], [2**62], [-1], [1] * 64, [1] * 65, [2**40, 2**40, 0]]
)
def test_numpy_makes_each_shape_that_is_read(shape: list[int]) -> None:
    """In memory and as an outline of torch's, of which no size takes memory."""
    for word in ("<f8", "|b1", "<U0", "<U3", "|S1"):
        size = np.dtype(word).itemsize if (shape and 0 not in shape and max(shape) == 1) or not shape else 0
        raw = {"$": "numpy.ndarray", "dtype": word, "shape": shape, "order": "C"}
        text = {**raw, "base64": base64.b64encode(bytes(size)).decode()}
        assert is_read(decode, text) == is_read(outline, text)
        stored = torch.empty(size, dtype=torch.uint8, device="meta")
        named = {**raw, "name": "t"}
        assert is_read(decode, named, stored) == is_read(outline, named, TensorOutline("uint8", (size,)))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_torch_knows_each_dtype_that_is_read_and_which_has_a_gradient() -> None:
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        name = str(dtype).removeprefix("torch.")
        assert decode({"$": "torch.dtype", "name": name}, str) is dtype  # type: ignore[arg-type]
        assert is_read(outline, {"$": "torch.dtype", "name": name})
        given = torch.empty(2, dtype=dtype, device="meta")
        raw = {"$": "parameter", "name": "t", "requires_grad": True}
        differs = given.is_floating_point() or given.is_complex()
        assert is_read(decode, raw, given) == is_read(outline, raw, TensorOutline(name, (2,))) == differs


def test_a_device_of_another_machine_is_no_damage() -> None:
    """Its name can be read, and this torch does not know its kind."""
    raw = {"$": "torch.device", "name": "strange:1"}
    assert is_read(outline, raw)
    with pytest.raises(StateError, match=r"'strange:1', which torch .* does not have here"):
        decode(raw, str)  # type: ignore[arg-type]
