"""Whole small checkpoints without torch: bytes that say which tensor they are of, written as a real writer would."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

from spotguard.hooks.checkpoint.format.codec import encode_manifest
from spotguard.hooks.checkpoint.format.dtypes import ITEMSIZE
from spotguard.hooks.checkpoint.format.keys import (
    CheckpointName,
    checkpoint_prefix,
    manifest_name,
    object_name,
)
from spotguard.hooks.checkpoint.format.manifest import (
    FORMAT,
    FORMAT_KEY,
    Chunk,
    Kind,
    Level,
    ObjectEntry,
    RankManifest,
    TensorEntry,
    private_name,
)
from spotguard.hooks.commit.plan.bin_packing import PlannedTensor, plan
from spotguard.providers.stores.base import BlobStore
from tests.fakes.commit import put_manifest, put_marker

#: (dtype, global shape): split by rows among the ranks where there are as many, else written by one of them.
TENSORS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "model.embed.weight": ("float32", (64, 16)),
    "model.bias": ("bfloat16", (24,)),
    "optimizer.0.step": ("float32", ()),
    "optimizer.0.exp_avg": ("float32", (64, 16)),
    "model.empty": ("int64", (0, 3)),
    "model.odd": ("complex128", (3, 5)),
}


#: Numbers of formats that this version does not read, each with the refusal: a file before 0.1.0 has none under this key.
FOREIGN: Mapping[int | None, str] = {
    FORMAT + 1: f"its '{FORMAT_KEY}' is {FORMAT + 1}, expected {FORMAT}: read it with a newer spotguard",
    None: f"it has no '{FORMAT_KEY}', expected {FORMAT}: a spotguard older than 0.1.0 wrote it; read it with that one",
}


def renumbered(data: bytes, number: int | None) -> bytes:
    """The same file under another number of its format, or without one."""
    whole = json.loads(data)
    (kind,) = whole.keys() - {"crc32"}
    fields = {name: value for name, value in whole[kind].items() if name != FORMAT_KEY}
    body = json.dumps(fields if number is None else {FORMAT_KEY: number, **fields}).encode()
    return b'{"crc32":%d,"%s":' % (zlib.crc32(body), kind.encode()) + body + b"}\n"


@dataclass
class Save:
    """One checkpoint to be; `write` makes it."""

    run_id: str = "run"
    attempt: int = 1
    step: int = 10
    save: int = 0
    world: int = 2
    level: Level = "full"
    kind: Kind = "background"
    tensors: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=lambda: dict(TENSORS))
    target: int = 4096
    #: Objects of an earlier checkpoint to refer to instead of writing: its manifests.
    base: list[RankManifest] = field(default_factory=list)
    #: Why the losses of a rank make it suspect.
    suspect: Mapping[int, str] = field(default_factory=dict)
    #: By rank: the values that were left out.
    left_out: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks that had died: they write nothing, and the others all."""
        return (self.world - 1,) if self.level == "partial-extras" else ()

    @property
    def name(self) -> CheckpointName:
        return CheckpointName(self.attempt, self.step, self.save)

    @property
    def prefix(self) -> str:
        return checkpoint_prefix(self.run_id, self.name)

    def content(self, name: str) -> bytes:
        """What the tensor holds: a function of its name and the step."""
        dtype, shape = self.tensors[name]
        return random.Random(f"{name}-{self.step}").randbytes(prod(shape) * ITEMSIZE[dtype])

    def write(self, store: BlobStore, *, marker: bool = True) -> list[RankManifest]:
        """Objects, manifests, marker, in this order."""
        manifests = [self.write_rank(store, rank) for rank in range(self.world)]
        if marker:
            put_marker(store, manifests, created=2.0)
        return manifests

    def write_foreign(self, store: BlobStore, number: int | None) -> None:
        """Objects, and manifests of another format."""
        for rank in range(self.world):
            data = encode_manifest(self.write_objects(store, rank))
            store.put(self.prefix + manifest_name(rank, self.world), memoryview(renumbered(data, number)))

    def write_rank(self, store: BlobStore, rank: int) -> RankManifest:
        manifest = self.write_objects(store, rank)
        put_manifest(store, manifest)
        return manifest

    def write_objects(self, store: BlobStore, rank: int) -> RankManifest:
        """All that a rank writes but its manifest."""
        if rank in self.missing:
            return replace(self.write_objects(store, 0), rank=rank, objects=(), tensors=(), state={})
        items = [self._share(name, rank) for name in sorted(self.tensors)]
        mine = [item for item in items if item is not None]
        own = PlannedTensor(private_name(rank, "rng"), "uint8", (16,))
        objects: list[ObjectEntry] = []
        chunks: dict[str, list[Chunk]] = {}
        if self.base:
            mine, objects, chunks = [], *self._referred(rank)
        for planned in plan([*mine, own], self.target):
            data = bytearray(planned.header)
            for piece in planned.pieces:
                item = [*mine, own][piece.item]
                size = ITEMSIZE[item.dtype]
                row = prod(item.sizes[1:]) * size
                begin = (item.offsets[0] if item.offsets else 0) * row + piece.first * size
                content = (
                    bytes(range(rank % 240, rank % 240 + 16)) if item is own else self.content(item.name)
                )
                part = content[begin : begin + piece.count * size]
                chunk = Chunk(
                    piece.offsets, piece.sizes, len(objects), piece.start, piece.end, zlib.crc32(part)
                )
                chunks.setdefault(item.name, []).append(chunk)
                data += part
            written = sum(not entry.checkpoint for entry in objects)
            name = object_name(rank, self.world, written)
            store.put(self.prefix + name, memoryview(data))
            objects.append(ObjectEntry(name, len(data), len(planned.header), zlib.crc32(planned.header)))
        shapes = {**self.tensors, own.name: ("uint8", (16,))}
        entries = [
            TensorEntry(name, dtype, shape, tuple(chunks.get(name, ())))
            for name, (dtype, shape) in shapes.items()
        ]
        return RankManifest(
            run_id=self.run_id, step=self.step, attempt=self.attempt, save=self.save, rank=rank, world=self.world,
            objects=tuple(objects), tensors=tuple(entries),
            state={
                "scheduler": {"last_epoch": self.step}, "rng": {"torch": {"$": "tensor", "name": own.name}},
                **{name: {"$": "tensor", "name": name} for name in self.tensors},
            },
            environment={"torch": "2.13.0"}, level=self.level, kind=self.kind, incarnation="nonce", created=1.0,
            missing=self.missing, suspect=self.suspect.get(rank, ""), left_out=self.left_out.get(rank, ())
        )  # fmt: skip

    def _share(self, name: str, rank: int) -> PlannedTensor | None:
        """What this rank writes of a tensor."""
        dtype, shape = self.tensors[name]
        writers = self.world - len(self.missing)
        if shape and shape[0] >= writers:
            first, last = (shape[0] * each // writers for each in (rank, rank + 1))
            rest = (0,) * (len(shape) - 1)
            return PlannedTensor(name, dtype, (last - first, *shape[1:]), (first, *rest), shape)
        return (
            PlannedTensor(name, dtype, shape) if sorted(self.tensors).index(name) % writers == rank else None
        )

    def _referred(self, rank: int) -> tuple[list[ObjectEntry], dict[str, list[Chunk]]]:
        base = self.base[rank]
        objects = [replace(entry, checkpoint=str(base.checkpoint)) for entry in base.objects]
        return objects, {
            entry.name: list(entry.chunks) for entry in base.tensors if not entry.name.startswith("@")
        }
