"""Manifests of large jobs: read and checked as a commit does, and planned from as a restoring rank does.

2,169 items a rank is about a model of 70 billion parameters with Adam. Each tensor is split among all ranks along its first
dimension, as FSDP does, so 1,024 ranks make two million chunks. Everything runs on a thread beside the main thread, where the
collector goes on, as in a job that trains. The memory is the most that it takes beyond the bytes of the manifests.

Beside it, for 128 ranks: the global plan that `torch.distributed.checkpoint` makes on its coordinator from the same, with its
unpickling of what ranks send.
"""

from __future__ import annotations

import gc
import pickle
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from spotguard.hooks.checkpoint.format.boxes import Box
from spotguard.hooks.checkpoint.format.codec import decode_manifest, encode_manifest
from spotguard.hooks.checkpoint.format.columns import ColumnCache
from spotguard.hooks.checkpoint.format.coverage import Coverage, coverage
from spotguard.hooks.checkpoint.format.keys import object_name
from spotguard.hooks.checkpoint.format.manifest import Chunk, ObjectEntry, RankManifest, TensorEntry

from .rows import Row
from .saving import resident
from .scale import Scale
from .timing import seconds

_WIDTH = 64
_HEADER = 4096


#: Ranks; how often it is measured; and the figures: seconds to read and check, and to plan.
_WORLDS = ((128, 5, 0.5, 1.0), (1024, 3, 2.0, 3.0), (4096, 1, 8.0, 12.0))
#: MiB that a commit, or a restore, may take.
_MEMORY = 256.0


def measure(scale: Scale) -> Iterator[Row]:
    tensors, worlds = scale.of((2169, _WORLDS), (20, ((4, 1, 0.5, 1.0),)))
    for index, (world, times, check, plan) in enumerate(worlds):
        files = [(f"rank {rank}", _manifest(rank, world, tensors)) for rank in range(world)]
        what = f"{world:,} ranks × {tensors:,} tensors"
        yield Row(f"manifests of {what}: bytes of one", "kB", (len(files[0][1]) / 1e3,))
        peer = _planned_by_dcp(world, tensors) if index == 0 else None
        checked = [_on_a_thread(lambda: _measured(lambda: _commit(files))) for _ in range(times)]  # noqa: B023
        yield Row(
            f"manifests of {what}: read and checked",
            "s",
            tuple(seconds for seconds, _ in checked),
            figure=check,
            peer=peer,
            peer_name="DCP's global plan",
        )
        yield Row(
            f"manifests of {what}: memory of that", "MiB", tuple(mib for _, mib in checked), figure=_MEMORY
        )
        planned = [_on_a_thread(lambda: _measured(lambda: _plan_of(files, world))) for _ in range(times)]  # noqa: B023
        yield Row(
            f"manifests of {what}: read, checked, and one rank's reads planned",
            "s",
            tuple(seconds for seconds, _ in planned),
            figure=plan,
        )


def _measured(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the call, and MiB of memory that it takes at its worst."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew: proc(5)
    before = resident("VmRSS")
    took = seconds(call)
    return took, max(0, resident("VmHWM") - before) / 2**20


def _commit(files: list[tuple[str, bytes]]) -> Coverage:
    cache = ColumnCache()
    return coverage([decode_manifest(data, key, cache) for key, data in files])


def _plan_of(files: list[tuple[str, bytes]], world: int) -> int:
    """The chunks that one rank in the middle reads, as many ranks as saved."""
    whole, wanted = _commit(files), Box((world // 2 * _WIDTH, 0), (_WIDTH, _WIDTH))
    return sum(len([*tensor.meeting(wanted)]) for tensor in whole.tensors.values())


def _planned_by_dcp(world: int, tensors: int) -> float:
    plans = [pickle.dumps(_plan(rank, world, tensors)) for rank in range(world)]
    return sorted(seconds(lambda: _planned(plans)) for _ in range(2))[0]


def _on_a_thread(call: Callable[[], tuple[float, float]]) -> tuple[float, float]:
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
