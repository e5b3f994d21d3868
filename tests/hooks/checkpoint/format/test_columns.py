"""Tensors as columns: what is packed comes back, what ranks have in common is kept once, and what is not valid is refused."""

from __future__ import annotations

import base64
import json
import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotguard.hooks.checkpoint.format.codec import decode_manifest, encode_manifest
from spotguard.hooks.checkpoint.format.columns import TensorColumns
from spotguard.hooks.checkpoint.format.coverage import RowChunks, coverage
from spotguard.hooks.checkpoint.format.manifest import (
    Chunk,
    ObjectEntry,
    RankManifest,
    TensorEntry,
    is_private,
    private_name,
)
from spotguard.hooks.checkpoint.format.packing import PackedCache, pack, pack_numbers
from spotguard.providers.errors import CheckpointError
from tests.fakes.checkpoint import Save
from tests.fakes.store import FakeStore

OBJECT = ObjectEntry("00001-of-00002/0000.safetensors", 4096, 96, 7)


def manifest(*tensors: TensorEntry) -> RankManifest:
    return RankManifest("run", 1, 0, 0, 1, 2, objects=(OBJECT,), tensors=tensors)


def tensor(name: str, shape: tuple[int, ...] = (4, 2), *boxes: tuple[int, int]) -> TensorEntry:
    """Of int8; each box is some of its rows, and lies in the object behind the box before it."""
    at, chunks = 96, []
    for row, rows in boxes:
        nbytes = rows * shape[1]
        chunks.append(Chunk((row, 0), (rows, shape[1]), 0, at, at + nbytes, zlib.crc32(name.encode())))
        at += nbytes
    return TensorEntry(name, "int8", shape, tuple(chunks))


SOME = manifest(
    tensor("a", (4, 2), (0, 2), (2, 2)),
    TensorEntry("scalar", "float32", (), (Chunk((), (), 0, 200, 204, 2**32 - 1),)),
    TensorEntry("moment", "float32", (2,), (Chunk((0,), (2,), 0, 204, 208, 5),), "bfloat16"),
    TensorEntry(private_name(1, "rng"), "uint8", (3,), (Chunk((0,), (3,), 0, 208, 211, 0),)),
    TensorEntry("elsewhere", "int64", (9, 0, 3), ()),
)


def raw(value: RankManifest = SOME) -> dict[str, Any]:
    whole: dict[str, Any] = json.loads(encode_manifest(value))["manifest"]
    return whole


def opened(body: dict[str, Any]) -> RankManifest:
    """The manifest of this JSON, whose CRC is right."""
    data = json.dumps(body, separators=(",", ":")).encode()
    return decode_manifest(b'{"crc32":%d,"manifest":' % zlib.crc32(data) + data + b"}\n", "the/key")


def test_each_tensor_comes_back_by_its_place_and_in_order() -> None:
    """With several chunks, with none, without a dimension, rounded, and of one rank alone."""
    columns = decode_manifest(encode_manifest(SOME), "k").tensors
    assert isinstance(columns, TensorColumns)
    assert tuple(columns) == SOME.tensors
    assert [columns[at] for at in range(len(columns))] == list(SOME.tensors)
    assert (columns[-1], columns[1:3]) == (SOME.tensors[-1], SOME.tensors[1:3])
    assert TensorColumns.of(columns) is columns
    assert columns != SOME.tensors[1:]


@given(st.data())
def test_any_tensors_come_back(data: st.DataObject) -> None:
    """Rows of some of them, in any number of boxes."""
    entries = []
    for name in data.draw(st.lists(st.text(min_size=1, max_size=5), unique=True, max_size=6)):
        rows = data.draw(st.integers(1, 9))
        box = st.tuples(st.integers(0, rows - 1), st.integers(0, 1))
        entries.append(tensor(name, (rows, 3), *data.draw(st.lists(box, max_size=3))))
    whole = manifest(*entries)
    read = decode_manifest(encode_manifest(whole), "k")
    assert read == whole
    assert encode_manifest(read) == encode_manifest(whole)


def test_unknown_fields_are_skipped_in_any_order() -> None:
    """More columns, more fields, another order of them, and white space where the encoder puts none."""
    body = raw()
    body["tensors"][0]["more"] = "AAAA"
    assert opened({"aside": 1, **dict(reversed(body.items()))}).tensors == SOME.tensors


def test_values_that_ranks_share_are_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, shapes and sizes are the same Python objects in all manifests of a cache, however much each rank has of its own."""
    monkeypatch.setattr("spotguard.hooks.checkpoint.format.packing.KEPT", 24)
    cache, world = PackedCache(), 12
    read = []
    for each in Save(world=world).write(FakeStore(), marker=False):
        own = tensor(private_name(each.rank, "rng"), (1, 1))
        tensors = (*(entry for entry in each.tensors if not is_private(entry.name)), own)
        columns = decode_manifest(encode_manifest(replace(each, tensors=tensors)), "k", cache).tensors
        assert columns == tensors
        assert isinstance(columns, TensorColumns)
        read.append(columns.runs)
    assert len({id(shared.layout.forms) for shared, _ in read}) == 1
    assert len({id(private.layout.forms) for _, private in read}) == world


@pytest.mark.parametrize(
    ("column", "value", "match"),
    [
        ("forms", None, "a column is NoneType, not text"),
        ("forms", 7, "a column is int, not text"),
        ("forms", pack({}), "not four columns"),
        ("forms", pack([["a"], ["int8"], [""], []]), "different lengths"),
        ("forms", pack([[""], ["int8"], [""], [[1]]]), "no usable name"),
        ("forms", pack([["a"], ["int9"], [""], [[1]]]), "unknown to this version"),
        ("forms", pack([["a"], ["int8"], [""], [[True]]]), "a dimension of True"),
        ("forms", pack([["a"], ["int8"], [""], [[2**40, 2**40]]]), "too large to exist"),
        ("forms", pack([["a", "a"], ["int8"] * 2, [""] * 2, [[1]] * 2]), "1 chunks|2 tensors|twice"),
        ("forms", "?", "not compressed text"),
        ("forms", base64.b64encode(zlib.compress(b"[")).decode(), "content of a packed value is not JSON"),
        ("forms", base64.b64encode(zlib.compress(b"NaN")).decode(), "NaN is not a JSON number"),
        ("forms", base64.b64encode(zlib.compress(b"[]")[:-1]).decode(), "truncated"),
        ("counts", pack_numbers("I", [1]), "a column has 1 numbers in place of 3"),
        ("counts", pack_numbers("I", [4, 0, 0]), "a column has 5 numbers in place of 8"),
        (
            "counts",
            base64.b64encode(zlib.compress(b"abcde")).decode(),
            "a column has 1 numbers in place of 3",
        ),
        ("offsets", pack_numbers("q", [0]), "a column has 1 numbers in place of 5"),
        ("offsets", pack_numbers("q", [0, 0, 3, 0, 0]), "tensor 'a' is outside its shape"),
        ("offsets", pack_numbers("q", [0, 0, 2, 0, -1]), "tensor 'moment' is outside its shape"),
        ("sizes", pack_numbers("q", [2, 2, 2, 2, 3]), "tensor 'moment' is outside its shape"),
        ("sizes", pack_numbers("q", [2, 2, 2, 2, -1]), "tensor 'moment' is outside its shape"),
        ("sizes", pack_numbers("q", [2, 2, 2**62, 2**62, 1]), "is outside its shape"),
        ("objects", pack_numbers("I", [0, 0, 0, 1]), "refers to object 1, but there are 1 objects"),
        ("objects", pack_numbers("I", [0]), "a column has 1 numbers in place of 4"),
        ("objects", pack_numbers("I", [0] * 5), "has more than 16 bytes"),
        ("starts", pack_numbers("q", [95, 0, 0, 0]), "bytes 95 to 99 is outside"),
        ("starts", pack_numbers("q", [4094, 0, 0, 0]), "bytes 4094 to 4098 is outside"),
        ("starts", pack_numbers("q", [2**62, 2**62, 0, 0]), "beyond the largest size"),
        ("crc32", pack_numbers("I", [1]), "a column has 1 numbers in place of 4"),
        ("crc32", None, "a column is NoneType, not text"),
    ],
)
def test_a_column_that_is_not_valid_is_refused_with_the_key_and_the_reason(
    column: str, value: Any, match: str
) -> None:
    """Never something else than a `CheckpointError`, whatever the bytes say."""
    body = raw()
    body["tensors"][0][column] = value
    with pytest.raises(CheckpointError, match=f"the/key: .*({match})"):
        opened(body)


@pytest.mark.parametrize(
    ("tensors", "match"),
    [
        ({}, "must be a list of columns"),
        ([7], "must be a list of columns"),
        (raw()["tensors"][:1] * 2, "'a' is listed twice"),
    ],
)
def test_runs_that_are_not_valid_are_refused(tensors: Any, match: str) -> None:
    """A tensor in two of them, too."""
    with pytest.raises(CheckpointError, match=f"the/key: .*{match}"):
        opened(raw() | {"tensors": tensors})


def test_a_state_that_is_no_packed_json_is_refused() -> None:
    """By its key too."""
    body = raw(replace(SOME, state={"scheduler": {"$": "tuple", "items": [1]}}))
    assert opened(body).state == {"scheduler": {"$": "tuple", "items": [1]}}
    for wrong in (7, "?", {"plain": 1}):
        with pytest.raises(CheckpointError, match=r"the/key: a column is"):
            opened({**body, "state": {"scheduler": wrong}})


# --- what the columns of several ranks prove ---


def test_ranks_that_say_the_same_are_one_run_whoever_read_them() -> None:
    """A rank that commits has its own manifest as tuples, and the others' from the store: the quick proof holds for them too."""
    own, *others = Save(world=4).write(FakeStore(), marker=False)
    cache = PackedCache()
    read = [decode_manifest(encode_manifest(each), "k", cache) for each in others]
    alone = decode_manifest(encode_manifest(own), "k")
    for first in (own, alone):
        merged = coverage([first, *read])
        assert isinstance(merged.tensors["model.embed.weight"].chunks, RowChunks)
        assert [rank for rank, _ in merged.tensors["model.embed.weight"].chunks] == [0, 1, 2, 3]


def proves(*boxes: tuple[tuple[int, int], tuple[int, int]], crc32: Callable[[int], int] = int) -> str:
    """Why these boxes of a 4 × 3 tensor, one of each rank, are no checkpoint; "" if they are."""
    manifests = [
        RankManifest(
            "run", 1, 0, 0, rank, len(boxes),
            tensors=(TensorEntry("w", "int8", (4, 3), (Chunk(*box, 0, 0, box[1][0] * box[1][1], crc32(rank)),)),),
        )
        for rank, box in enumerate(boxes)
    ]  # fmt: skip
    try:
        coverage(manifests)
    except CheckpointError as error:
        return str(error)
    return ""


def test_any_two_boxes_tile_if_each_element_is_in_one() -> None:
    """Of few sizes and places, counted element by element; whole rows are told by a way of their own."""
    places = [
        ((row, column), (rows, columns))
        for row, column, rows, columns in product((0, 2, 3), (0, 1), (0, 2, 4), (2, 3))
        if row + rows <= 4 and column + columns <= 3
    ]
    whole = 0
    for pair in product(places, repeat=2):
        held = [
            (row + a, column + b)
            for (row, column), (rows, columns) in {box for box in pair if 0 not in box[1]}
            for a, b in product(range(rows), range(columns))
        ]
        tiles = sorted(held) == [*product(range(4), range(3))]
        assert (proves(*pair, crc32=lambda _: 1) == "") == tiles, pair
        whole += tiles
    assert whole > 2


def test_replicas_that_differ_are_no_checkpoint() -> None:
    """The same box twice counts once, if its bytes are the same."""
    whole = ((0, 0), (4, 3))
    assert proves(whole, whole, crc32=lambda _: 9) == ""
    assert "the bytes of rank 1 differ from another rank's" in proves(whole, whole)


def test_the_order_of_ranks_does_not_matter() -> None:
    """A rank has its own manifest before all others."""
    manifests = Save(world=5, target=600).write(FakeStore(), marker=False)
    random.Random(3).shuffle(manifests)
    merged = coverage(manifests)
    assert [each.rank for each in merged.manifests] == [0, 1, 2, 3, 4]
    assert {*merged.tensors} == {entry.name for each in manifests for entry in each.tensors}
