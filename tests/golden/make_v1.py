"""Makes tests/golden/v1: a store with checkpoints of format 1, by hand and not by the writer of the day.

Run once, when the format was new (`python -m tests.golden.make_v1 FOLDER`, at the root of the repository), and kept since:
`test_golden.py` loads it for ever. Never run it again over v1: a new format gets a folder and a script of its own.

The run is "golden", of two ranks. Of attempt 1, step 5 is whole. Attempt 2 has step 8 with split and replicated tensors of many
dtypes, one stored as bfloat16, one empty, one 0-d, and private ones; step 9, which refers to step 8's objects and has no marker;
step 10, without a manifest of rank 1. Attempt 3 has step 12 of level partial-extras: rank 1 had died.
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter, OrderedDict, deque
from dataclasses import replace
from math import prod
from typing import Any

from spotguard.hooks.checkpoint.attempts import claim_attempt
from spotguard.hooks.checkpoint.format.dtypes import ITEMSIZE
from spotguard.hooks.checkpoint.format.keys import CheckpointName, checkpoint_prefix, object_name
from spotguard.hooks.checkpoint.format.manifest import (
    Chunk,
    ObjectEntry,
    RankManifest,
    TensorEntry,
    private_name,
)
from spotguard.hooks.checkpoint.format.values.encoder import encode
from spotguard.hooks.commit.plan.bin_packing import PlannedTensor, plan
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.file import FileStore
from tests.fakes.commit import put_manifest, put_marker

RUN = "golden"

#: name: (dtype, stored, global shape, which rank writes it; None: rows 0-2 by rank 0, the rest by rank 1)
TENSORS: dict[str, tuple[str, str, tuple[int, ...], int | None]] = {
    "model.weight": ("float32", "", (5, 7), None),
    "model.bias": ("bfloat16", "", (7,), 0),
    "model.mask": ("bool", "", (3, 3), 1),
    "model.scale": ("float8_e8m0fnu", "", (6,), 1),
    "model.phase": ("complex128", "", (2, 2), 0),
    "model.count": ("uint16", "", (), 1),
    "model.none": ("int64", "", (0, 4), 0),
    "optimizer.0.exp_avg": ("float32", "bfloat16", (5, 7), None),
    "optimizer.0.step": ("float32", "", (), 0),
}

STATE: dict[str, Any] = {
    "scheduler": {"last_epoch": 8, "milestones": Counter({3: 1, 6: 2}), "base_lrs": [0.1, float("inf")], "betas": (0.9, 0.999)},
    "loader": OrderedDict([("epoch", 1), ("seen", deque([1, 2], maxlen=4)), ("seed", 2**70), ("flags", {True, None, "x"})]),
    "notes": {"text": "ä𝄞", 3: b"\0\xff", (1, "a"): range(3), "nan": float("nan"), "lone": "\ud800"},
}  # fmt: skip


def content(name: str, step: int) -> bytes:
    """What a tensor holds, by a rule that the test repeats."""
    dtype, stored, shape, _ = TENSORS.get(name, ("uint8", "", (16,), 0))
    count = prod(shape) * ITEMSIZE[stored or dtype]
    return bytes((index * 37 + len(name) * 11 + step) % 251 for index in range(count))


def share(name: str, rank: int) -> PlannedTensor | None:
    dtype, stored, shape, owner = TENSORS[name]
    if owner is not None:
        return PlannedTensor(name, stored or dtype, shape) if owner == rank else None
    first, rows = ((0, 3), (3, shape[0] - 3))[rank]
    return PlannedTensor(name, stored or dtype, (rows, *shape[1:]), (first, *(0,) * (len(shape) - 1)), shape)


def write(
    store: BlobStore, name: CheckpointName, rank: int, base: RankManifest | None = None
) -> RankManifest:
    """The objects of one rank; its manifest is returned, not put."""
    own = PlannedTensor(private_name(rank, "rng"), "uint8", (16,))
    items = [item for each in TENSORS if (item := share(each, rank)) is not None] if base is None else []
    objects = [] if base is None else [
        ObjectEntry(entry.name, entry.size, entry.header, entry.header_crc32, str(base.checkpoint)) for entry in base.objects
    ]  # fmt: skip
    chunks: dict[str, list[Chunk]] = {}
    for entry in base.tensors if base is not None else ():
        if not entry.name.startswith("@"):
            chunks[entry.name] = list(entry.chunks)
    for index, planned in enumerate(plan([*items, own], 512)):
        data = bytearray(planned.header)
        for piece in planned.pieces:
            item = [*items, own][piece.item]
            size = ITEMSIZE[item.dtype]
            begin = (item.offsets[0] * prod(item.sizes[1:]) if item.offsets else 0) + piece.first
            part = content(item.name, name.step)[begin * size : (begin + piece.count) * size]
            place = Chunk(piece.offsets, piece.sizes, len(objects), piece.start, piece.end, zlib.crc32(part))
            chunks.setdefault(item.name, []).append(place)
            data += part
        key = object_name(rank, 2, index)
        store.put(checkpoint_prefix(RUN, name) + key, memoryview(data))
        objects.append(ObjectEntry(key, len(data), len(planned.header), zlib.crc32(planned.header)))
    tensors = [
        TensorEntry(each, dtype, shape, tuple(chunks.get(each, ())), stored)
        for each, (dtype, stored, shape, _) in TENSORS.items()
    ]
    tensors.append(TensorEntry(own.name, "uint8", (16,), tuple(chunks[own.name])))
    state = {key: encode(value, lambda tensor: "", key) for key, value in STATE.items()}
    state |= {each: {"$": "tensor", "name": each} for each in TENSORS}
    return RankManifest(
        run_id=RUN, step=name.step, attempt=name.attempt, save=name.save, rank=rank, world=2, objects=tuple(objects),
        tensors=tuple(tensors), state={**state, "rng": {"torch": {"$": "tensor", "name": own.name}}}, environment={"torch": "2.13.0", "threads": 2},
        kind="emergency", incarnation=f"nonce-{name.attempt}", created=1_790_000_000.5,
    )  # fmt: skip


def write_alone(
    store: BlobStore, name: CheckpointName, like: RankManifest
) -> tuple[RankManifest, RankManifest]:
    """All tensors as objects of rank 0, as rank 1 had died; the manifests of both ranks are returned, not put."""
    items = [
        PlannedTensor(each, stored or dtype, shape) for each, (dtype, stored, shape, _) in TENSORS.items()
    ]
    items.append(PlannedTensor(private_name(0, "rng"), "uint8", (16,)))
    objects: list[ObjectEntry] = []
    chunks: dict[str, list[Chunk]] = {}
    for index, planned in enumerate(plan(items, 512)):
        data = bytearray(planned.header)
        for piece in planned.pieces:
            item = items[piece.item]
            size = ITEMSIZE[item.dtype]
            part = content(item.name, name.step)[piece.first * size : (piece.first + piece.count) * size]
            place = Chunk(piece.offsets, piece.sizes, index, piece.start, piece.end, zlib.crc32(part))
            chunks.setdefault(item.name, []).append(place)
            data += part
        key = object_name(0, 2, index)
        store.put(checkpoint_prefix(RUN, name) + key, memoryview(data))
        objects.append(ObjectEntry(key, len(data), len(planned.header), zlib.crc32(planned.header)))
    shapes: dict[str, Any] = {**TENSORS, private_name(0, "rng"): ("uint8", "", (16,), 0)}
    tensors = [
        TensorEntry(each, dtype, shape, tuple(chunks.get(each, ())), stored)
        for each, (dtype, stored, shape, _) in shapes.items()
    ]
    first = replace(
        like, step=name.step, attempt=name.attempt, save=name.save, objects=tuple(objects), tensors=tuple(tensors),
        level="partial-extras", missing=(1,), incarnation=f"nonce-{name.attempt}",
    )  # fmt: skip
    return first, replace(first, rank=1, objects=(), tensors=(), state={})


def main(folder: str) -> None:
    store = FileStore(folder)
    for attempt in (1, 2, 3):
        claim_attempt(
            store, RUN, {"host": "a"}, incarnation=f"nonce-{attempt}", world=2, created=1_790_000_000.0
        )
    bases: dict[int, list[RankManifest]] = {}
    for attempt, step, save in [(1, 5, 0), (2, 8, 0), (2, 9, 1), (2, 10, 2)]:
        name = CheckpointName(attempt, step, save)
        bases[step] = [write(store, name, rank, bases[8][rank] if step == 9 else None) for rank in range(2)]
        for manifest in bases[step][: 1 if step == 10 else 2]:
            put_manifest(store, manifest)
        if step in (5, 8):
            put_marker(store, bases[step], created=1_790_000_001.0)
    lower = write_alone(store, CheckpointName(3, 12, 0), bases[8][0])
    for manifest in lower:
        put_manifest(store, manifest)
    put_marker(store, lower, created=1_790_000_002.0)


if __name__ == "__main__":
    main(sys.argv[1])
