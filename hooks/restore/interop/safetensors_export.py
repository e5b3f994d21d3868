"""Export of a checkpoint's tensors as one safetensors file, for tools that know nothing of ranks and chunks.

The place of each tensor in the file is known before the first byte is read. So chunks go straight to their places,
in any order, and no whole tensor is ever in memory. This module needs no torch.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ....providers.clock import Clock
from ....providers.errors import CheckpointError
from ....providers.stores.base import BlobStore
from ...checkpoint.catalog import WholeCheckpoint
from ...checkpoint.format.boxes import Box, runs
from ...checkpoint.format.coverage import MergedTensor
from ...checkpoint.format.dtypes import ITEMSIZE, safetensors_form
from ...checkpoint.format.manifest import RankManifest
from ...checkpoint.format.safetensors_header import header
from ...commit.upload.workers import PlainBuffer
from ..reads.fetch import BufferSpan, Fetch, Progress, StrictSink
from ..reads.ranges import WantedChunk, plan

#: Prefix of a private name (`manifest.private_name`), of any rank.
_OWN = re.compile(r"@\d{5,}/", re.ASCII)


def weights(manifests: Sequence[RankManifest]) -> dict[str, str]:
    """Return the tensor names of the registered modules' state dicts, by their keys.

    With several modules, each key begins with the module's name. A tied weight appears under each of its keys. If
    ranks have own values, the result names the first rank's.
    """
    parts: dict[str, dict[str, str]] = {}
    for manifest in manifests:
        for part, tree in manifest.state.items():
            for key, name in _entries(part, tree):
                parts.setdefault(part, {}).setdefault(key, name)
    if len(parts) == 1:
        return next(iter(parts.values()))
    return {f"{part}.{key}": name for part, entries in parts.items() for key, name in entries.items()}


def _entries(part: str, tree: Any) -> list[tuple[str, str]]:
    """Return (key, tensor name) of the entries of a module's state dict; nothing for other trees.

    The name of a module's tensor ends with its key. A tensor of one rank alone has the rank's number before it. (An
    optimizer's entries are deeper, and other tensors have numbers as names.)
    """
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
    """Plan of the file: its header, and the place of each tensor."""

    header: bytes
    #: Offsets in the file, in bytes, by the name of the tensor in the checkpoint: one for each of its labels.
    places: Mapping[str, Sequence[int]]
    size: int


def layout(whole: WholeCheckpoint, names: Mapping[str, str]) -> ExportLayout:
    """Plan a file.

    Args:
        whole: the checkpoint.
        names: names of the tensors in the checkpoint, by their labels in the file.

    Raises:
        CheckpointError: the state names a tensor that no rank wrote.
    """
    entries: list[tuple[str, MergedTensor]] = []
    for label, name in names.items():
        if (tensor := whole.tensors.get(name)) is None:
            raise CheckpointError(f"its state names tensor {name!r}, but no rank wrote it")
        entries.append((label, tensor))
    # Order by falling item size, as safetensors itself does, so that all tensors are aligned.
    entries.sort(key=lambda entry: (-_itemsize(entry[1]), entry[0]))
    pieces = [(label, _dtype(tensor), tensor.shape, _nbytes(tensor)) for label, tensor in entries]
    notes = {"format": "pt", "spotguard": f"run {whole.run_id}, checkpoint {whole.name}"}
    foreign = {label: dtype for label, dtype, shape, _ in pieces if _is_bytes(dtype)}
    if foreign:
        notes["dtypes"] = json.dumps(foreign)  # dtypes that safetensors lacks, and that are stored as bytes
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
    """Write a planned file into an open one; every byte is verified first.

    It needs memory for the buffers of the reader only.

    Args:
        store: the store that holds the checkpoint.
        whole: the checkpoint.
        planned: the plan of the file.
        file: an open file descriptor.
        progress: called with the bytes done and the bytes in total.
        clock: the clock for the fetch; None for the system's.

    Raises:
        CheckpointError: bytes differ from the saved ones.
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
    """Sink that writes verified bytes into the file."""

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
    """Return the dtype of the stored bytes: moments may have been rounded."""
    return tensor.stored or tensor.dtype


def _is_bytes(dtype: str) -> bool:
    return safetensors_form(dtype, (1,))[0] == "U8" and dtype != "uint8"


def _itemsize(tensor: MergedTensor) -> int:
    return ITEMSIZE[_dtype(tensor)]


def _nbytes(tensor: MergedTensor) -> int:
    return prod(tensor.shape) * _itemsize(tensor)
