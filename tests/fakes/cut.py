"""Checkpoints of several ranks out of whole tensors, cut as a mesh would cut them: what is read of one is known beforehand."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from spotguard.hooks.checkpoint.format.boxes import Box
from spotguard.hooks.checkpoint.format.coverage import Coverage, coverage
from spotguard.hooks.checkpoint.format.dtypes import dtype_name
from spotguard.hooks.checkpoint.format.keys import CheckpointName, checkpoint_prefix, object_name
from spotguard.hooks.checkpoint.format.manifest import (
    Chunk,
    ObjectEntry,
    RankManifest,
    TensorEntry,
    private_name,
)
from spotguard.hooks.commit.plan.bin_packing import OBJECT_BYTES, PlannedTensor, plan
from spotguard.hooks.state.device.host_buffer import as_bytes, box
from spotguard.providers.stores.base import BlobStore
from tests.fakes.commit import put_manifest, put_marker

#: What a rank holds of a tensor of this name and shape: (name, shape, rank, world).
Rule = Callable[[str, tuple[int, ...], int, int], Box | None]


def rows(name: str, shape: tuple[int, ...], rank: int, world: int, dim: int = 0) -> Box | None:
    """As FSDP cuts along a dimension: the last ranks may hold less, or nothing. What has no dimension is rank 0's."""
    if not shape:
        return Box((), ()) if rank == 0 else None
    size = -(-shape[dim] // world)
    first = min(rank * size, shape[dim])
    offsets, sizes = [0] * len(shape), list(shape)
    offsets[dim], sizes[dim] = first, min(size, shape[dim] - first)
    return Box(tuple(offsets), tuple(sizes))


def columns(name: str, shape: tuple[int, ...], rank: int, world: int) -> Box | None:
    """Along the last dimension."""
    return rows(name, shape, rank, world, len(shape) - 1)


def grid(name: str, shape: tuple[int, ...], rank: int, world: int) -> Box | None:
    """Two columns of ranks: tensor parallel along the last dimension, FSDP along the first."""
    if len(shape) < 2:
        return rows(name, shape, rank, world)
    tall = rows(name, shape, rank // 2, world // 2)
    wide = columns(name, shape, rank % 2, 2)
    assert tall is not None
    assert wide is not None
    return Box((*tall.offsets[:-1], wide.offsets[-1]), (*tall.sizes[:-1], wide.sizes[-1]))


@dataclass
class Cut:
    """One checkpoint to be; `write` makes it."""

    tensors: Mapping[str, torch.Tensor]
    rule: Rule = rows
    world: int = 4
    #: Of every rank, encoded.
    state: Mapping[str, Any] = field(default_factory=dict)
    #: Tensors that each rank has one of, for itself: by name without the rank.
    private: Mapping[str, torch.Tensor] = field(default_factory=dict)
    step: int = 7
    run_id: str = "run"
    target: int = OBJECT_BYTES

    @property
    def name(self) -> CheckpointName:
        return CheckpointName(1, self.step, 0)

    def write(self, store: BlobStore) -> Coverage:
        """Objects, manifests, marker."""
        manifests = [self.write_rank(store, rank) for rank in range(self.world)]
        put_marker(store, manifests, created=2.0)
        return coverage(manifests)

    def write_rank(self, store: BlobStore, rank: int) -> RankManifest:
        held: list[tuple[PlannedTensor, torch.Tensor]] = []
        for name, tensor in self.tensors.items():
            part = self.rule(name, tuple(tensor.shape), rank, self.world)
            if part is not None:
                item = PlannedTensor(
                    name, dtype_name(tensor.dtype), part.sizes, part.offsets, tuple(tensor.shape)
                )
                held.append((item, box(tensor, *part)))
        for name, tensor in self.private.items():
            name = private_name(rank, name)
            held.append((PlannedTensor(name, dtype_name(tensor.dtype), tuple(tensor.shape)), tensor))
        objects: list[ObjectEntry] = []
        chunks: dict[str, list[Chunk]] = {}
        for planned in plan([item for item, _ in held], self.target):
            data = bytearray(planned.header)
            for piece in planned.pieces:
                item, tensor = held[piece.item]
                content = _bytes(box(tensor, piece.local, piece.sizes))
                chunks.setdefault(item.name, []).append(
                    Chunk(
                        piece.offsets, piece.sizes, len(objects), piece.start, piece.end, zlib.crc32(content)
                    )
                )
                data += content
            name = object_name(rank, self.world, len(objects))
            store.put(checkpoint_prefix(self.run_id, self.name) + name, memoryview(bytes(data)))
            objects.append(ObjectEntry(name, len(data), len(planned.header), zlib.crc32(planned.header)))
        manifest = RankManifest(
            self.run_id, self.name.step, self.name.attempt, self.name.save, rank, self.world,
            objects=tuple(objects), tensors=tuple(_entries([item for item, _ in held], chunks)), state=self.state,
        )  # fmt: skip
        put_manifest(store, manifest)
        return manifest


def _entries(items: Sequence[PlannedTensor], chunks: Mapping[str, Sequence[Chunk]]) -> list[TensorEntry]:
    return [
        TensorEntry(item.name, item.dtype, item.shape or item.sizes, tuple(chunks.get(item.name, ())))
        for item in items
    ]


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(as_bytes(tensor.contiguous()).numpy())
