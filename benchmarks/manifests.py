"""A commit's reading: the manifests of 128 ranks, 2,169 tensors each, decoded and proven to tile.

2,169 items a rank is about a model of 70 billion parameters with Adam. Each tensor is split among all ranks along
its first dimension, as FSDP does, so 128 ranks make 277,632 chunks. Beside it: the global plan that
`torch.distributed.checkpoint` makes on its coordinator from the same, with its unpickling of what ranks send.

Twice: all at once on the main thread, as a restore begins; and one after the other on a thread beside it, where the
collector goes on, as a rank commits for all others.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from spotguard.hooks.checkpoint.format.codec import decode_manifest, decode_manifests, encode_manifest
from spotguard.hooks.checkpoint.format.columns import ColumnCache
from spotguard.hooks.checkpoint.format.coverage import coverage
from spotguard.hooks.checkpoint.format.keys import object_name
from spotguard.hooks.checkpoint.format.manifest import Chunk, ObjectEntry, RankManifest, TensorEntry

from .rows import Row
from .scale import Scale
from .timing import seconds

_WIDTH = 64
_HEADER = 4096


def measure(scale: Scale) -> Iterator[Row]:
    world, tensors, times = scale.of((128, 2169, 5), (4, 20, 1))
    files = [(f"rank {rank}", _manifest(rank, world, tensors)) for rank in range(world)]
    merged = [seconds(lambda: coverage(decode_manifests(files)).tensors) for _ in range(times)]
    plans = [pickle.dumps(_plan(rank, world, tensors)) for rank in range(world)]
    planned = sorted(seconds(lambda: _planned(plans)) for _ in range(min(times, 2)))
    yield Row(
        f"manifests of {world} ranks × {tensors:,} tensors read, merged and checked",
        "s",
        tuple(merged),
        figure=2.0,
        peer=planned[len(planned) // 2],
        peer_name="DCP's global plan",
    )
    committed = [_on_a_thread(lambda: seconds(lambda: _commit(files))) for _ in range(times)]
    yield Row(
        "  the same as a commit does it, on a thread beside training", "s", tuple(committed), figure=2.0
    )


def _commit(files: list[tuple[str, bytes]]) -> None:
    cache = ColumnCache()
    coverage([decode_manifest(data, key, cache) for key, data in files])


def _on_a_thread(call: Callable[[], float]) -> float:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def _manifest(rank: int, world: int, tensors: int) -> bytes:
    """One rank's manifest: its 1/world of every tensor, 64 rows of 64 float32 each, in objects of 100 tensors."""
    size, per_object = _WIDTH * _WIDTH * 4, 100
    entries = [
        TensorEntry(
            f"model/layers.{i}.weight",
            "float32",
            (world * _WIDTH, _WIDTH),
            (
                Chunk(
                    (rank * _WIDTH, 0),
                    (_WIDTH, _WIDTH),
                    i // per_object,
                    _HEADER + i % per_object * size,
                    _HEADER + (i % per_object + 1) * size,
                    zlib.crc32(b"%d %d" % (rank, i)),
                ),
            ),
        )
        for i in range(tensors)
    ]
    objects = tuple(
        ObjectEntry(object_name(rank, world, i), _HEADER + per_object * size, _HEADER, 1)
        for i in range(-(-tensors // per_object))
    )
    return encode_manifest(
        RankManifest("bench", 1, 0, 0, rank, world, objects=objects, tensors=tuple(entries))
    )


def _plan(rank: int, world: int, tensors: int) -> SavePlan:
    """What one rank sends to DCP's coordinator for the same state."""
    full, box = torch.Size([world * _WIDTH, _WIDTH]), torch.Size([_WIDTH, _WIDTH])
    offsets = torch.Size([rank * _WIDTH, 0])
    properties = TensorProperties(dtype=torch.float32)
    names = [f"model.layers.{i}.weight" for i in range(tensors)]
    return SavePlan(
        [
            WriteItem(
                index=MetadataIndex(name, offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(ChunkStorageMetadata(offsets, box), properties, full),
            )
            for name in names
        ],
        planner_data={name: (name,) for name in names},
    )


def _planned(plans: list[bytes]) -> Any:
    planner = DefaultSavePlanner()
    planner.set_up_planner({}, is_coordinator=True)
    return planner.create_global_plan([pickle.loads(plan) for plan in plans])
