"""A checkpoint's tensors as one safetensors file, whole: for tools that know nothing of ranks and chunks.

Where each tensor's bytes lie in the file is known before the first is read, so chunks go straight to their places, in
whatever order they come, and no tensor is ever held. Nothing here needs torch.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ...providers.clock import Clock
from ...providers.errors import CheckpointError
from ...providers.stores.base import BlobStore
from ..checkpoint.catalog import WholeCheckpoint
from ..checkpoint.format.boxes import Box, runs
from ..checkpoint.format.coverage import MergedTensor
from ..checkpoint.format.dtypes import ITEMSIZE, safetensors_form
from ..checkpoint.format.manifest import RankManifest
from ..checkpoint.format.safetensors_header import header
from ..restore.fetch import Fetch, Progress
from ..restore.ranges import WantedChunk, plan
from ..restore.sink import BufferSpan, PlainBuffer, StrictSink

#: What a private name begins with (`manifest.private_name`), of any rank.
_OWN = re.compile(r"@\d{5,}/", re.ASCII)


def weights(manifests: Sequence[RankManifest]) -> dict[str, str]:
    """The entries of the registered modules' state dicts, by their keys, and the tensors that they are.

    With several modules a key begins with the module's name. A tied weight is there under each of its keys. What each rank
    has of its own is the first rank's.
    """
    found: dict[str, dict[str, str]] = {}
    for manifest in manifests:
        for part, tree in manifest.state.items():
            for key, name in _entries(part, tree):
                found.setdefault(part, {}).setdefault(key, name)
    if len(found) == 1:
        return next(iter(found.values()))
    return {f"{part}.{key}": name for part, entries in found.items() for key, name in entries.items()}


def _entries(part: str, tree: Any) -> list[tuple[str, str]]:
    """A module's keep their keys in their names, behind the number of the rank that they are of, where they are one's own.
    (An optimizer's stand deeper, and other tensors have numbers.)"""
    if not isinstance(tree, dict) or "$" in tree:
        return []
    return [
        (key, value["name"])
        for key, value in tree.items()
        if isinstance(value, dict)
        and value.get("$") in ("tensor", "parameter")
        and _OWN.sub("", str(value.get("name"))).startswith(f"{part}/")
    ]


@dataclass(frozen=True, slots=True)
class ExportLayout:
    """What the file begins with, and where each tensor's bytes are in it."""

    header: bytes
    #: By the tensor's name in the checkpoint: once for each label that it has.
    places: Mapping[str, Sequence[int]]
    size: int


def layout(whole: WholeCheckpoint, names: Mapping[str, str]) -> ExportLayout:
    """Plan a file.

    Args:
        names: the tensors' names in the checkpoint, by what they are called in the file.

    Raises:
        CheckpointError: the state names a tensor that is not there.
    """
    entries: list[tuple[str, MergedTensor]] = []
    for label, name in names.items():
        if (tensor := whole.tensors.get(name)) is None:
            raise CheckpointError(f"its state names tensor {name!r}, and no rank wrote it")
        entries.append((label, tensor))
    # As safetensors itself does: by falling size of an element, so that all are aligned.
    entries.sort(key=lambda entry: (-_itemsize(entry[1]), entry[0]))
    pieces = [(label, _dtype(tensor), tensor.shape, _nbytes(tensor)) for label, tensor in entries]
    notes = {"format": "pt", "spotguard": f"run {whole.run_id}, checkpoint {whole.name}"}
    foreign = {label: dtype for label, dtype, shape, _ in pieces if _is_bytes(dtype)}
    if foreign:
        notes["dtypes"] = json.dumps(foreign)  # of what safetensors has no word for, and is stored as bytes
    first = header(pieces, notes)
    at = len(first)
    places: dict[str, list[int]] = {}
    for _, tensor in entries:
        places.setdefault(tensor.name, []).append(at)
        at += _nbytes(tensor)
    return ExportLayout(first, places, at)


def write(
    store: BlobStore,
    whole: WholeCheckpoint,
    planned: ExportLayout,
    file: int,
    *,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> None:
    """Write a planned file into an open one, every byte verified first. Memory: the reading's frames.

    Raises:
        CheckpointError: bytes are not the ones that were saved.
        StoreError: the store failed.
        OSError: the file cannot be written.
    """
    _put(file, memoryview(planned.header), 0)
    wanted = []
    for name in planned.places:
        tensor = whole.tensors[name]
        for rank, chunk in tensor.chunks:
            key = whole.manifests[rank].object_key(chunk.object)
            wanted.append(WantedChunk(key, chunk, _itemsize(tensor), name))
    into = _IntoFile(whole, planned, file)
    Fetch(store, plan(wanted), PlainBuffer, into, progress=progress, clock=clock).run()


@dataclass(frozen=True, slots=True)
class _IntoFile(StrictSink):
    """The file, as what verified bytes are for."""

    whole: WholeCheckpoint
    planned: ExportLayout
    file: int

    def take(self, wanted: WantedChunk, spans: Sequence[BufferSpan[PlainBuffer]]) -> None:
        shape, chunk = self.whole.tensors[wanted.name].shape, wanted.chunk
        for span in spans:
            corner = tuple([a + b for a, b in zip(chunk.offsets, span.offsets, strict=True)])
            at, view = 0, span.view
            for first, count in runs(Box(corner, span.sizes), shape):
                end = at + count * wanted.itemsize
                for place in self.planned.places[wanted.name]:
                    _put(self.file, view[at:end], place + first * wanted.itemsize)
                at = end


def _put(file: int, view: memoryview, at: int) -> None:
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written


def _dtype(tensor: MergedTensor) -> str:
    """Of its bytes: moments may have been rounded."""
    return tensor.stored or tensor.dtype


def _is_bytes(dtype: str) -> bool:
    return safetensors_form(dtype, (1,))[0] == "U8" and dtype != "uint8"


def _itemsize(tensor: MergedTensor) -> int:
    return ITEMSIZE[_dtype(tensor)]


def _nbytes(tensor: MergedTensor) -> int:
    return prod(tensor.shape) * _itemsize(tensor)
