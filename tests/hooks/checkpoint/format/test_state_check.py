"""A state that no restore can read is found without torch: trees of another form, tensors out of their places, generators."""

from __future__ import annotations

import base64
import math
import random
from dataclasses import replace
from typing import Any

import pytest

from spotguard.hooks.checkpoint.format.codec import decode_manifests, encode_manifest
from spotguard.hooks.checkpoint.format.manifest import Chunk, RankManifest, TensorEntry
from spotguard.hooks.checkpoint.format.values.encoder import encode
from spotguard.hooks.checkpoint.format.values.state_check import StateCheck
from spotguard.providers.errors import CheckpointError
from tests.cases import cases


def held(state: dict[str, Any], *names: str, **options: Any) -> RankManifest:
    """A manifest that lists tensors of these names: of 8 bytes, or of numbers for a name with an "f"."""
    chunk = Chunk((0,), (8,), 0, 8, 16, 0)
    entries = tuple(
        TensorEntry(name, "float64" if name.endswith("f") else "uint8", (8,), (chunk,)) for name in names
    )
    return RankManifest("run", 10, 1, 0, 0, 1, tensors=entries, state=state, **options)


def check(manifest: RankManifest) -> None:
    StateCheck([manifest]).check(manifest)


def named(name: str) -> dict[str, str]:
    return {"$": "tensor", "name": name}


def array(**fields: Any) -> dict[str, Any]:
    return {"$": "numpy.ndarray", "dtype": "<f8", "shape": [1], "order": "C", **fields}


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


SOUND: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({}, ()),
    ({"notes": {"losses": [1, 2]}}, ()),
    ({"model": {"w": named("model/w"), "tied": named("model/w")}}, ("model/w",)),
    ({"ema": named("ema"), "loader": [named("@00001/loader#4")]}, ("ema", "@00001/loader#4")),
    ({"a": {"w": named("a/w")}, "a/b": {"w": named("a/b/w")}}, ("a/w", "a/b/w")),
    ({"one": {"s": named("one/s")}, "two": {"s": named("one/s")}}, ("one/s", "two/s")),
    ({"notes": {"p": {"$": "parameter", "name": "notes#f", "requires_grad": True}}}, ("notes#f",)),
    ({"notes": {"a": array(name="@00000/notes#1")}}, ("@00000/notes#1",)),
    ({"rng": {"python": encode(random.Random(3).getstate(), str), "torch": named("rng#1"), "cuda": []}}, ("rng#1",)),
    ({"rng": {"numpy": {"bit_generator": "PCG64", "state": {}}, "xpu": [named("rng#1")]}}, ("rng#1",)),
]  # fmt: skip


@pytest.mark.parametrize(("state", "names"), SOUND)
def test_a_state_that_names_each_tensor_is_sound(state: dict[str, Any], names: tuple[str, ...]) -> None:
    check(held(state, *names))


WRONG: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    "a plain value": ({"model": {"w": 3}}, ("model/w",), "another value in place of tensor 'model/w'"),
    "another's": ({"a": {"w": named("b/w"), "v": named("a/v")}, "b": {"w": named("b/w")}}, ("a/v", "b/w"), "names tensor 'b/w'"),
    "for a number": ({"a": {"lr": named("b/w")}, "b": {"w": named("b/w")}}, ("b/w",), "names tensor 'b/w'"),
    "in its place": ({"a": {"w": named("b/v")}, "b": {"v": named("b/v")}}, ("a/w", "b/v"), "another value in place"),
    "of no name": ({"a": {}}, ("b/w",), "no place for tensor 'b/w'"),
    "that nobody lists": ({"a": {"w": named("a/w")}}, (), "'a': it names tensor 'a/w', but no rank wrote it"),
    "an unknown word": ({"a": {"$": "no word"}}, (), "state of 'a': .* type 'no word' is unknown"),
    "no word": ({"a": [{"$": None}]}, (), "unknown"),
    "a wrong field": ({"a": {"$": "tuple", "items": 3}}, (), "int where list is expected"),
    "a name that is a number": ({"a": {"$": "tensor", "name": 3}}, (), "int where str"),
    "an unknown dtype": ({"a": {"$": "torch.dtype", "name": "float33"}}, (), "'float33' is not a dtype"),
    "a device with a zero": ({"a": {"$": "torch.device", "name": "cuda:01"}}, (), "not a device"),
    "an array's other size": ({"a": array(name="a#1", shape=[2])}, ("a#1",), "an array of shape"),
    "an array of numbers": ({"a": array(name="a#f")}, ("a#f",), "an array whose bytes are a float64 tensor"),
    "an array of nothing": ({"a": array(base64="", dtype="<U0", shape=[2**40])}, (), "an array of shape"),
    "an array of all memory": ({"a": array(base64="", shape=[2**62, 0])}, (), "an array of shape"),
    "an array's order": ({"a": array(base64=text(bytes(8)), order="A")}, (), "in order 'A'"),
    "objects": ({"a": array(base64=text(bytes(8)), dtype="|O")}, (), "not a numpy dtype"),
    "an array in a set": ({"a": {"$": "set", "items": [array(base64=text(bytes(8)))]}}, (), "an invalid set"),
    "a scalar for a float": ({"a": {"$": "complex", "parts": [0.0, {"$": "numpy.scalar", "dtype": "<f8", "base64": text(bytes(8))}]}}, (), "where float"),
    "a number twice": ({"a": {"$": "set", "items": [0, {"$": "numpy.scalar", "dtype": "<f8", "base64": text(bytes(8))}]}}, (), "an element twice"),
    "a gradient of bytes": ({"a": {"$": "parameter", "name": "a#1", "requires_grad": True}}, ("a#1",), "requires a gradient"),
    "no dict of generators": ({"rng": 3}, (), "state of 'rng': the generators' states are a int"),
    "python's without its index": ({"rng": {"python": {"$": "tuple", "items": [3, {"$": "tuple", "items": [1] * 624}, None]}}}, (), "python"),
    "python's of version 2": ({"rng": {"python": encode((2, random.Random(3).getstate()[1], None), str)}}, (), "python"),
    "python's word of 64 bits": ({"rng": {"python": encode((3, (2**40, *random.Random(3).getstate()[1][1:]), None), str)}}, (), "python"),
    "python's draw that is no number": ({"rng": {"python": encode((3, random.Random(3).getstate()[1], math.nan), str)}}, (), "python"),
    "numpy's draw that is no number": ({"rng": {"numpy": {"$": "tuple", "items": ["MT19937", array(dtype="<u4", base64=text(bytes(2496)), shape=[624]), 1, 1, encode(math.nan, str)]}}}, (), "numpy"),
    "torch's numbers": ({"rng": {"torch": named("rng#f")}}, ("rng#f",), "torch's generator"),
    "cuda's dict": ({"rng": {"cuda": {}}}, (), "cuda's generator"),
    "a loop that is no dict": ({"rng": {"loop": 3}}, (), "loop"),
    "a loop without its word": ({"rng": {"loop": {"drawn": None}}}, (), "loop"),
    "a loop that goes on by a number": ({"rng": {"loop": {"goes on": 1, "drawn": None}}}, (), "loop"),
    "a loop's draws without generators": ({"rng": {"loop": {"goes on": True, "drawn": {"global": {}}}}}, (), "loop"),
    "a loop in a loop's draws": ({"rng": {"loop": {"goes on": True, "drawn": {"global": {"loop": None}, "registered": {}}}}}, (), "loop"),
    "a loop's draws of another form": ({"rng": {"loop": {"goes on": True, "drawn": {"global": {"cuda": {}}, "registered": {}}}}}, (), "cuda's"),
    "numpy's name": ({"rng": {"numpy": {"$": "tuple", "items": ["X", array(base64="", shape=[0]), 1, 0, 0.0]}}}, (), "numpy's generator"),
}  # fmt: skip


@cases("kind", WRONG)
def test_a_state_that_no_restore_reads_is_refused(kind: str) -> None:
    state, names, says = WRONG[kind]
    with pytest.raises(CheckpointError, match=says):
        check(held(state, *names))


def test_deep_state_is_refused() -> None:
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    with pytest.raises(CheckpointError, match="nested"):
        check(held({"a": deep}))


def test_the_lower_levels_leave_state_out() -> None:
    """An optimizer without its moments still lists what its tree would name; what is there is read."""
    check(held({"a": {}}, "a/w", level="weights"))
    with pytest.raises(CheckpointError, match="unknown"):
        check(held({"a": {"$": "no word"}}, level="weights"))


def test_each_rank_s_own_state_is_read() -> None:
    """Ranks whose states are the same text share one reading, and one whose state differs has its own."""
    ranks = [replace(held({"a": [1]}), rank=rank, world=3) for rank in range(3)]
    ranks[1] = replace(ranks[1], state={"a": {"$": "no word"}})
    read = decode_manifests([(str(each.rank), encode_manifest(each)) for each in ranks])
    state = StateCheck(read)
    state.check(read[0])
    with pytest.raises(CheckpointError, match="unknown"):
        state.check(read[1])
    state.check(read[2])
