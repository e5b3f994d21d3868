"""Manifests read and forgotten one after the other prove what all of them at once prove, in the same words."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from spotguard.hooks.checkpoint.format.codec import decode_manifest, encode_manifest, open_manifest
from spotguard.hooks.checkpoint.format.coverage import StreamingCoverage, coverage
from spotguard.hooks.checkpoint.format.manifest import Chunk, RankManifest, TensorEntry
from spotguard.providers.errors import CheckpointError
from tests.cases import cases
from tests.fakes.checkpoint import Save
from tests.fakes.store import FakeStore

Change = Callable[[list[RankManifest]], list[RankManifest]]


def written(world: int) -> list[RankManifest]:
    return Save(world=world, target=600).write(FakeStore(), marker=False)


def edited(entries: Callable[[TensorEntry], TensorEntry], rank: int = 1) -> Change:
    """What a rank says of `embed` is something else."""

    def change(manifests: list[RankManifest]) -> list[RankManifest]:
        tensors = tuple(
            entries(entry) if entry.name == "model.embed.weight" else entry
            for entry in manifests[rank].tensors
        )
        return [*manifests[:rank], replace(manifests[rank], tensors=tensors), *manifests[rank + 1 :]]

    return change


def as_theirs(manifests: list[RankManifest]) -> list[RankManifest]:
    """The second rank says that it wrote the first one's boxes too, with other bytes."""
    first = {entry.name: entry for entry in manifests[0].tensors}["model.embed.weight"]
    chunks = tuple(
        chunk._replace(crc32=7, object=0, start=manifests[1].objects[0].header) for chunk in first.chunks
    )
    return edited(lambda entry: entry._replace(chunks=(*entry.chunks, *chunks)))(manifests)


CHANGES: dict[str, Change] = {
    "whole": lambda manifests: manifests,
    "a rank missing": lambda manifests: manifests[:-1],
    "a rank twice": lambda manifests: [*manifests[:-1], manifests[0]],
    "a chunk missing": edited(lambda entry: entry._replace(chunks=entry.chunks[1:])),
    "another dtype": edited(lambda entry: entry._replace(dtype="int32")),
    "another shape": edited(lambda entry: entry._replace(shape=(64, 17))),
    "other bytes": as_theirs,
    "another level": lambda manifests: [replace(manifests[0], level="weights"), *manifests[1:]],
    "another start": lambda manifests: [replace(manifests[0], incarnation="other"), *manifests[1:]],
}


def words(prove: Callable[[], object]) -> str:
    try:
        prove()
    except CheckpointError as error:
        return str(error)
    return ""


def merge(manifests: list[RankManifest]) -> StreamingCoverage:
    merging = StreamingCoverage()
    for manifest in manifests:
        merging.add(manifest, manifest.tensors)
    merging.check()
    return merging


@cases("change", CHANGES)
@cases("world", [2, 5])
def test_it_says_what_coverage_says(world: int, change: str) -> None:
    """Whole, or why not."""
    manifests = CHANGES[change](written(world))
    said = words(lambda: coverage(manifests))
    if change == "a rank twice":
        said = words(lambda: coverage(manifests[:-1]))  # by rank, it is there once
    assert words(lambda: merge(manifests)) == said
    assert bool(said) == (change != "whole")


def test_the_order_of_ranks_does_not_matter() -> None:
    """A rank has its own before all others."""
    manifests = written(5)
    random.Random(3).shuffle(manifests)
    assert words(lambda: merge(manifests)) == ""


def test_what_a_marker_is_made_of_is_kept() -> None:
    """And no tensor."""
    manifests = written(3)
    kept = merge(manifests).manifests
    assert {rank: (each.objects, each.tensors) for rank, each in kept.items()} == {
        each.rank: (each.objects, ()) for each in manifests
    }


def sealed(body: bytes) -> bytes:
    return b'{"crc32":%d,"manifest":' % zlib.crc32(body) + body + b"}\n"


def otherwise(raw: dict[str, Any]) -> list[bytes]:
    """The same manifest as another version might write it."""
    more = {**raw, "objects": [{**each, "tensors": [1], "state": {}} for each in raw["objects"]]}
    entries = [{**each, "aside": [[1], 2], "state": 5} for each in raw["tensors"]]
    return [
        json.dumps(raw, indent=1).encode(),
        json.dumps(raw, separators=(",", ":"), sort_keys=True).encode(),
        json.dumps(more, separators=(",", ":")).encode(),
        json.dumps({**raw, "tensors": entries}, separators=(",", ":")).encode(),
        json.dumps({**raw, "environment": {"tensors": ["a"]}}, separators=(",", ":")).encode(),
    ]


def test_tensors_come_one_by_one_as_they_come_together() -> None:
    """However the manifest is written, and with names that look like its own words."""
    manifest = written(2)[1]
    odd = manifest.tensors[0]._replace(name='"tensors":[{},"state":],"state":')
    for each in (replace(manifest, tensors=(odd, *manifest.tensors)), replace(manifest, tensors=())):
        data = encode_manifest(each)
        whole = decode_manifest(data, "k")
        stub, tensors = open_manifest(data, "k")
        assert (stub, tuple(tensors)) == (replace(whole, tensors=()), whole.tensors)
        body = json.loads(data)["manifest"]
        for other in otherwise(body):
            stub, tensors = open_manifest(sealed(other), "k")
            assert tuple(tensors) == whole.tensors
            assert stub.objects == whole.objects


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        (b'"tensors":[{', b'"tensors":[[', "k: "),
        (b'"tensors":[{', b'"tensors":[,{', "k: not JSON inside"),
        (b'],"state":', b',],"state":', "k: not JSON inside"),
        (b'"tensors":[{', b'"tensors":[1,{', r"k: tensors\[0\] is not a tensor's entry"),
        (b'"tensors":[{', b'"tensors":[NaN,{', "k: NaN is not a JSON number"),
        (b'"tensors":[{', b'"tensors":[{}{', "k: "),
        (b'"format":1', b'"format":99', "newer"),
        (b'"rank":1', b'"rank":5', "k: rank"),
    ],
)
def test_what_is_wrong_with_one_is_said_with_its_key(old: bytes, new: bytes, match: str) -> None:
    """Never something else than a `CheckpointError`, also where only a tensor is wrong."""
    body = encode_manifest(written(2)[1]).partition(b'"manifest":')[2][:-2]
    assert old in body
    data = sealed(body.replace(old, new, 1))
    with pytest.raises(CheckpointError, match=match):
        list(open_manifest(data, "k")[1])


def test_a_damaged_one_is_refused_before_its_first_tensor() -> None:
    """A flipped bit anywhere."""
    data = bytearray(encode_manifest(written(2)[1]))
    data[len(data) // 2] ^= 1
    with pytest.raises(CheckpointError, match="k: damaged"):
        open_manifest(bytes(data), "k")


def test_two_boxes_tile_here_where_they_tile_there() -> None:
    """Any two, of few sizes and places: whole rows are told by another way here."""
    boxes = [
        ((row, column), (rows, columns))
        for row, column, rows, columns in product((0, 2, 3), (0, 1), (0, 2, 4), (2, 3))
    ]
    whole = 0
    for pair in product(boxes, repeat=2):
        manifests = [
            RankManifest(
                "run",
                1,
                0,
                0,
                rank,
                2,
                tensors=(TensorEntry("w", "int8", (4, 3), (Chunk(*box, 0, 0, 0, rank),)),),
            )
            for rank, box in enumerate(pair)
        ]
        said = words(lambda: coverage(manifests))  # noqa: B023 (called at once)
        assert words(lambda: merge(manifests)) == said, pair  # noqa: B023
        whole += not said
    assert whole > 1
