"""`python -m benchmarks.dcp RANKS TENSORS`: what `torch.distributed.checkpoint` takes for as many ranks; prints it as JSON."""

from __future__ import annotations

import dataclasses
import json
import pickle
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

#: Rows and columns of a rank's shard.
WIDTH = 64


@dataclass(frozen=True)
class Dcp:
    """What `torch.distributed.checkpoint` takes for the same ranks and tensors."""

    #: Seconds of the coordinator's global plan, with the unpickling of what ranks send.
    plan: float
    #: Bytes of `.metadata`, which every rank reads.
    metadata: int
    #: Seconds in which a rank unpickles it and makes its read items.
    read: float


def measure(world: int, tensors: int) -> Dcp:
    sent = [pickle.dumps(_plan(rank, world, tensors)) for rank in range(world)]
    began = time.monotonic()
    plans, metadata = _planned(sent)
    plan = time.monotonic() - began
    # As `FileSystemWriter.finish` does it: the place of each chunk.
    size = WIDTH * WIDTH * 4
    metadata.storage_data = {
        item.index: _StorageInfo(f"__{rank}_0.distcp", at * size, size)
        for rank, each in enumerate(plans)
        for at, item in enumerate(each.items)
    }
    raw = pickle.dumps(metadata)
    del plans, metadata, sent
    began = time.monotonic()
    read = pickle.loads(raw)
    mine = ChunkStorageMetadata(torch.Size([world // 2 * WIDTH, 0]), torch.Size([WIDTH, WIDTH]))
    items = [
        create_read_items_for_chunk_list(name, tensor, [mine])
        for name, tensor in read.state_dict_metadata.items()
    ]
    if len(items) != tensors:
        raise RuntimeError(f"{len(items)} tensors were planned of {tensors}")
    return Dcp(plan, len(raw), time.monotonic() - began)


def _plan(rank: int, world: int, tensors: int) -> SavePlan:
    """What one rank sends to DCP's coordinator for the same state."""
    full, box = torch.Size([world * WIDTH, WIDTH]), torch.Size([WIDTH, WIDTH])
    offsets = torch.Size([rank * WIDTH, 0])
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


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(measure(int(sys.argv[1]), int(sys.argv[2])))))
