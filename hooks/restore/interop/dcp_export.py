"""Export of a checkpoint as a directory in the format of `torch.distributed.checkpoint` (DCP).

Stock `dcp.load` reads the directory without spotguard. DCP's own writer writes the directory, so its files are those of
the installed torch. This module gives the writer the contents, and then one verified chunk after the other. DCP's
`.metadata` is a pickle, and so is each value that is not a tensor. That is the only exception to the rule that
spotguard writes none.
"""

from __future__ import annotations

import io
import warnings
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.state_dict_saver import save

from ....providers.errors import SpotguardError
from ....providers.stores.base import BlobStore
from ...checkpoint.catalog import WholeCheckpoint
from ...checkpoint.format.boxes import Box
from ...checkpoint.format.coverage import Coverage
from ..reads.fetch import Progress
from ..reads.resharding import ReadTarget, fill
from .dcp_names import FlatCheckpoint, SavedTree, flat, values_of
from .dcp_reader import metadata_of, saved_bytes


def to_dcp(
    store: BlobStore, whole: WholeCheckpoint, folder: Path, *, progress: Progress | None = None
) -> int:
    """Write a checkpoint into an empty directory.

    It needs memory for one chunk, and for the buffers of the reader.

    Args:
        store: the store that holds the checkpoint.
        whole: the checkpoint.
        folder: an empty directory.
        progress: called with the bytes done and the bytes in total.

    Returns:
        The number of tensors.

    Raises:
        CheckpointError: bytes differ from the saved ones.
        StoreError: the store failed.
        OSError: the directory cannot be written.
    """
    planner = _Planner(store, whole, progress)
    writer = FileSystemWriter(folder, single_file_per_rank=True, thread_count=1)
    with warnings.catch_warnings():
        # Ignored are the warning about saving in one process, and torch's own about its typed storages.
        warnings.simplefilter("ignore")
        try:
            save({}, storage_writer=writer, planner=planner)
        except CheckpointException as error:
            raise _reason(next(iter(error.failures.values()))[0]) from error
    return len(planner.names.tensors)


def _reason(error: BaseException) -> BaseException:
    """Return the cause of an error that DCP wrapped.

    On a full disk `torch.save` reports an unexpected position; the system's own error is its cause.
    """
    behind: BaseException | None = error
    while behind is not None and not isinstance(behind, (OSError, SpotguardError)):
        behind = behind.__cause__ or behind.__context__
    return behind or error


class _Planner(SavePlanner):
    """Planner that lists the contents of the checkpoint, and reads them piece by piece as the writer asks."""

    def __init__(self, store: BlobStore, whole: WholeCheckpoint, progress: Progress | None) -> None:
        self._store = store
        self._whole = whole
        self._merged = Coverage(whole.manifests, whole.tensors)
        self._progress = progress
        self.names: FlatCheckpoint = flat(self._merged, twice=False)
        self._metadata = metadata_of(whole, self.names, own=False)
        self._values: dict[SavedTree, Any] = {}
        self._done = 0
        self._total = 0

    def set_up_planner(self, *args: Any, **kwargs: Any) -> None:
        """Ignore the state dict, which is empty: the planner reads from the checkpoint."""

    def create_local_plan(self) -> SavePlan:
        items: list[WriteItem] = []
        for name, entry in self._metadata.state_dict_metadata.items():
            if isinstance(entry, BytesStorageMetadata):
                items.append(WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO))
            else:
                items += _items(name, entry)
        self._total = sum(_nbytes(item) for item in items)
        return SavePlan(items)

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        return all_plans, self._metadata

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        name = write_item.index.fqn
        if write_item.type == WriteItemType.BYTE_IO:
            return saved_bytes(self._value(name))
        entry = self._whole.tensors[self.names.tensors[name]]
        assert write_item.index.index is not None
        assert write_item.tensor_data is not None
        part = ReadTarget.of(self._merged, entry, *entry.chunks[write_item.index.index])
        sizes = part.wanted.chunk.sizes
        tensor = torch.empty(sizes, dtype=write_item.tensor_data.properties.dtype, device="cpu")
        part.copies.append((Box((0,) * len(sizes), sizes), tensor))
        fill(self._store, [part])
        self._done += _nbytes(write_item)
        if self._progress is not None:
            self._progress(self._done, self._total)
        return tensor

    def _value(self, name: str) -> Any:
        source = self.names.values[name]
        if source not in self._values:
            inner: list[ReadTarget] = []
            self._values[source] = values_of(self._merged, source, inner)
            fill(self._store, inner)
        return self._values[source][name]


def _items(name: str, entry: TensorStorageMetadata) -> list[WriteItem]:
    return [
        WriteItem(
            MetadataIndex(name, chunk.offsets, index),
            WriteItemType.SHARD,
            tensor_data=TensorWriteData(chunk, entry.properties, entry.size),
        )
        for index, chunk in enumerate(entry.chunks)
    ]


def _nbytes(item: WriteItem) -> int:
    data = item.tensor_data
    return 0 if data is None else prod(data.chunk.sizes) * data.properties.dtype.itemsize
