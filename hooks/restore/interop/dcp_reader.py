"""Reader of spotguard checkpoints for `torch.distributed.checkpoint` (DCP), into any mesh.

DCP plans by our manifests, which list for each tensor the box in each chunk, and then asks for parts of chunks. The
reader fetches them as a restore does: by ranges, in parallel, each chunk verified before a byte of it is copied.

A value that is not a tensor is typed JSON in the checkpoint, and this module decodes it. DCP wants the bytes that
`torch.save` would have written, so this module makes them in memory. spotguard never reads a pickle from a store.
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.checkpoint import storage
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem

from ....providers.clock import SystemClock
from ....providers.errors import CheckpointError, UsageError
from ....providers.run_id import RUN_ID, is_run_id
from ....providers.stores.base import BlobStore
from ....providers.stores.factory import open_store
from ....providers.text import store_url
from ...arguments.speaker import name_the_speaker
from ...checkpoint.catalog import WholeCheckpoint, find_whole
from ...checkpoint.format.boxes import Box
from ...checkpoint.format.coverage import Coverage, MergedTensor
from ...checkpoint.format.dtypes import torch_dtype
from ...checkpoint.format.manifest import LEVELS, lacks
from ..reads.resharding import ReadTarget, fill
from ..retrying_store import RetryingStore
from .dcp_names import FlatCheckpoint, SavedTree, flat, values_of

log = logging.getLogger("spotguard")


class StorageReader(storage.StorageReader):
    """Storage reader that loads a spotguard checkpoint with `dcp.load`, into any number of ranks and any mesh.

    If the ranks find different checkpoints, `dcp.load` fails. If a checkpoint is damaged, `dcp.load` fails too, and
    falls back to no older one: pass the `step` of an older one then.

    Example:
        >>> state = {"model": model.state_dict()}
        >>> dcp.load(state, storage_reader=StorageReader("s3://bucket/prefix", "my-run", step=500))

    Args:
        url: the store, as in `spotguard run --store`.
        run_id: the run that saved the checkpoint.
        step: load the checkpoint of this step; None for the newest complete one.

    Raises:
        UsageError: `url` names no store, or `run_id` is not valid.
    """

    def __init__(self, url: str, run_id: str, step: int | None = None) -> None:
        super().__init__()
        name_the_speaker()
        if not is_run_id(run_id):
            raise UsageError(f"run id {run_id!r}: expected {RUN_ID}")
        self._store: BlobStore = RetryingStore(
            open_store(store_url(url)), SystemClock(), "Nothing was loaded"
        )
        self._run_id = run_id
        self._step = step
        self._whole: WholeCheckpoint | None = None
        self._flat = FlatCheckpoint()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Forget the checkpoint, so that the next load searches for the newest one again.

        Args:
            checkpoint_id: must be None; the constructor names the checkpoint.

        Raises:
            UsageError: a `checkpoint_id` was passed.
        """
        if checkpoint_id is not None:
            raise UsageError(
                f"checkpoint_id {os.fspath(checkpoint_id)!r} was passed: leave it out, and construct "
                "StorageReader(url, run_id, step)"
            )
        self._whole = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return False: an id alone selects no checkpoint, because a run must be named as well."""
        return False

    def read_metadata(self) -> Metadata:
        """Find the checkpoint, and return its contents as DCP's metadata.

        Returns:
            Every tensor with its dtype, global shape and chunks, and every other value.

        Raises:
            CheckpointError: the run has no complete checkpoint.
            UnsupportedFormatError: this version cannot read the checkpoint.
            StoreError: the store failed.
        """
        whole = find_whole(self._store, self._run_id, step=self._step) or find_whole(
            self._store, self._run_id, step=self._step, levels=LEVELS
        )
        if whole is None:
            which = "" if self._step is None else f" of step {self._step}"
            raise CheckpointError(
                f"run {self._run_id} has no complete checkpoint{which} in {self._store.url}; `spotguard "
                f"ls {self._store.url}` lists its checkpoints [SG605]"
            )
        if lacking := lacks(whole.level, whole.missing):
            log.warning(
                "step %d was saved without %s, and spotguard reads it without that", whole.name.step, lacking
            )
        self._whole = whole
        self._flat = flat(Coverage(whole.manifests, whole.tensors))
        return metadata_of(whole, self._flat)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Do nothing: `read_metadata` has prepared everything."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan with the name of the checkpoint that this rank found."""
        return replace(plan, storage_data=str(self._found().name))

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Check that all ranks have found the same checkpoint.

        Raises:
            CheckpointError: a checkpoint was committed, or pruned, while the ranks searched.
        """
        names = {str(plan.storage_data) for plan in plans}
        if len(names) > 1:
            raise CheckpointError(
                f"ranks have found different checkpoints ({' and '.join(sorted(names))}): one was "
                "committed while they searched. Load again, or pass the step"
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        """Fill the tensors and values of the plan.

        Returns:
            A future that is done.

        Raises:
            CheckpointError: bytes differ from the saved ones. Tensors may be partly filled.
            StoreError: the store failed.
        """
        whole = self._found()
        merged = Coverage(whole.manifests, whole.tensors)
        tensors = [item for item in plan.items if item.type != LoadItemType.BYTE_IO]
        others = [item for item in plan.items if item.type == LoadItemType.BYTE_IO]
        parts: list[ReadTarget] = []
        filled: list[tuple[ReadItem, torch.Tensor]] = []
        for item in tensors:
            target = planner.resolve_tensor(item)
            entry = whole.tensors[self._flat.tensors[item.storage_index.fqn]]
            part = ReadTarget.of(merged, entry, *entry.chunks[_chunk(entry, item)])
            box = Box(tuple(item.storage_offsets), tuple(item.lengths))
            part.copies.append((box, target.detach()))
            parts.append(part)
            filled.append((item, target))
        sources: dict[SavedTree, Any] = {}
        for item in others:
            source = self._flat.values[item.storage_index.fqn]
            if source not in sources:
                sources[source] = values_of(merged, source, parts)
        try:
            fill(self._store, parts)
        except CheckpointError as error:
            raise CheckpointError(f"{error}. Load an older one: pass its step") from error
        for item, target in filled:
            planner.commit_tensor(item, target)
        for item in others:
            name = item.storage_index.fqn
            planner.load_bytes(item, saved_bytes(sources[self._flat.values[name]][name]))
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done

    def _found(self) -> WholeCheckpoint:
        if self._whole is None:
            raise UsageError("read_metadata was not called: dcp.load calls it first")
        return self._whole


def metadata_of(whole: WholeCheckpoint, names: FlatCheckpoint, *, own: bool = True) -> Metadata:
    """Return the metadata by which DCP plans.

    Args:
        whole: the checkpoint.
        names: its contents by DCP's names; tensors that are in no tree are added.
        own: whether every tensor also gets its name in the checkpoint. Otherwise only shared tensors that are in no
            tree do.
    """
    tensors = {name: _metadata(entry) for name, entry in whole.tensors.items()}
    entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
    paths = dict(names.paths)
    for name, tensor in names.tensors.items():
        entries[name] = tensors[tensor]
    for name in names.values:
        entries[name] = BytesStorageMetadata()
    reached = set(names.tensors.values())
    for name in tensors:
        if name not in entries and (own or not (name in reached or name.startswith("@"))):
            entries[name] = tensors[name]
            names.tensors[name] = name
            paths[name] = (name,)
    return Metadata(entries, planner_data=paths)


def saved_bytes(value: Any) -> io.BytesIO:
    """Return a value as the bytes that DCP has in its files."""
    into = io.BytesIO()
    torch.save(value, into)
    into.seek(0)
    return into


def _metadata(entry: MergedTensor) -> TensorStorageMetadata:
    return TensorStorageMetadata(
        TensorProperties(dtype=torch_dtype(entry.dtype)),
        torch.Size(entry.shape),
        [
            ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes))
            for _, chunk in entry.chunks
        ],
    )


def _chunk(entry: MergedTensor, item: ReadItem) -> int:
    """Return the index of the chunk that DCP means.

    DCP passes the corner of the chunk, and the index at which it found the chunk.
    """
    hint, corner = item.storage_index.index, tuple(item.storage_index.offset or ())
    if hint is not None and hint < len(entry.chunks) and entry.chunks[hint][1].offsets == corner:
        return hint
    offsets: Sequence[tuple[int, ...]] = [chunk.offsets for _, chunk in entry.chunks]
    return offsets.index(corner)
