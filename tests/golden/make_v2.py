"""Makes tests/golden/v2: a store with checkpoints of format version 2, by hand and not by the writer of the day.

Run once, when the format was new (`python -m tests.golden.make_v2 FOLDER`, at the root of the repository), and kept since:
`test_golden.py` loads it for ever. Never run it again over v2: a new format version gets a folder and a script of its own.

The run is "golden", of two ranks. Attempt 1 has step 5, full and so of format 1, and step 9, of level partial-extras: rank 1
had died, rank 0 wrote all tensors. Attempt 2 has step 12, the same without a marker.
"""

from __future__ import annotations

import sys
import zlib
from dataclasses import replace
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
from spotguard.hooks.checkpoint.marker import put_manifest, put_marker
from spotguard.hooks.save.plan.bin_packing import PlannedTensor, plan
from spotguard.providers.stores.base import BlobStore
from spotguard.providers.stores.file import FileStore
from tests.golden.make_v1 import RUN, TENSORS, content
from tests.golden.make_v1 import write as write_v1


def write(store: BlobStore, name: CheckpointName, like: RankManifest) -> tuple[RankManifest, RankManifest]:
    """All tensors as objects of rank 0; the manifests of both ranks are returned, not put."""
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
        level="partial-extras", missing=(1,), incarnation=f"nonce-{name.attempt}", format=2,
    )  # fmt: skip
    return first, replace(first, rank=1, objects=(), tensors=(), state={})


def main(folder: str) -> None:
    store = FileStore(folder)
    for attempt in (1, 2):
        claim_attempt(
            store, RUN, {"host": "a"}, incarnation=f"nonce-{attempt}", world=2, created=1_790_000_000.0
        )
    full = [write_v1(store, CheckpointName(1, 5, 0), rank) for rank in range(2)]
    for manifest in full:
        put_manifest(store, manifest)
    put_marker(store, full, created=1_790_000_001.0)
    for name in (CheckpointName(1, 9, 1), CheckpointName(2, 12, 0)):
        lower = write(store, name, full[0])
        for manifest in lower:
            put_manifest(store, manifest)
        if name.attempt == 1:
            put_marker(store, lower, created=1_790_000_002.0)


if __name__ == "__main__":
    main(sys.argv[1])
