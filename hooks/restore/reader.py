"""Objects back into tensors: in parallel, through reused frames, each chunk verified before it is copied in.

A chunk's bytes never reach a tensor unless their CRC32 is the manifest's (law 6). What fails is a
`CheckpointError`: the caller then loads the next older whole checkpoint over everything, so training never
starts from a mix.

Memory may be a part of the tensor, and a part that was written by nobody in one piece: the chunks that meet it are read,
and no others. Each comes whole, since its CRC is of all of it, and what is wanted of it is copied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from ...providers.clock import Clock
from ...providers.errors import CheckpointError
from ...providers.stores.base import BlobStore
from ..checkpoint.format.boxes import Box, common
from ..checkpoint.format.coverage import Coverage, MergedTensor
from ..checkpoint.format.dtypes import ITEMSIZE, torch_dtype
from ..checkpoint.format.header_check import check_headers
from ..state.host_buffer import HostBuffer, box
from ..state.tensor_item import StateTensor
from .fetch import Fetch, Progress
from .ranges import WantedChunk, plan
from .sink import BufferSpan, StrictSink


def read(
    store: BlobStore,
    whole: Coverage,
    into: Mapping[str, StateTensor],
    *,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> int:
    """Fill memory from the checkpoint; returns the bytes of the chunks that were read.

    Args:
        store: where it is. One that asks again (`PatientStore`) makes the reading outlive a failure for now.
        whole: what the manifests say.
        into: by the tensor's name in the checkpoint, the memory, and which part of the tensor it is.
        progress: told how far it is, on this thread.
        clock: by which a request lags behind the others.

    Raises:
        CheckpointError: bytes are not the ones that were saved. Tensors may be partly filled.
        NewerFormatError: this version cannot read it. Nothing was filled.
        StoreError: the store failed.
    """
    parts: list[ReadTarget] = []
    for name, leaf in into.items():
        parts += parts_of(whole, whole.tensors[name], leaf)
    _prove(whole, {part.wanted.key for part in parts})
    return fill(store, parts, progress=progress, clock=clock)


def _prove(whole: Coverage, keys: Collection[str]) -> None:
    """See that the objects of these keys hold the tensors that the manifests say."""
    for manifest in whole.manifests:
        count = len(manifest.objects)
        if objects := [index for index in range(count) if manifest.object_key(index) in keys]:
            check_headers(manifest, objects)


@dataclass(frozen=True, slots=True)
class ReadTarget:
    """A chunk that is to be read, and the memory that its elements are for."""

    wanted: WantedChunk
    #: Of the chunk's bytes.
    dtype: torch.dtype
    #: Boxes of the chunk, counted from its own corner, and a tensor of each one's sizes.
    copies: list[tuple[Box, torch.Tensor]] = field(default_factory=list)

    @classmethod
    def of(cls, whole: Coverage, tensor: MergedTensor, index: int) -> ReadTarget:
        """The part that the chunk of this index in a merged tensor is, with nothing to copy yet."""
        rank, chunk = tensor.chunks[index]
        dtype = tensor.stored or tensor.dtype
        key = whole.manifests[rank].object_key(chunk.object)
        return cls(WantedChunk(key, chunk, ITEMSIZE[dtype], tensor.name), torch_dtype(dtype))


def fill(
    store: BlobStore,
    parts: Iterable[ReadTarget],
    *,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> int:
    """As `read`, where the caller has said which chunks are for what memory. A chunk that is named twice is read once."""
    by_place: dict[tuple[str, int, str], ReadTarget] = {}
    for part in parts:
        if (held := by_place.setdefault(_place(part.wanted), part)) is not part:
            held.copies.extend(part.copies)
    wanted = [part.wanted for part in by_place.values()]
    make = partial(HostBuffer, touched=False)
    Fetch(store, plan(wanted), make, _Into(by_place), progress=progress, clock=clock).run()
    return sum(each.chunk.end - each.chunk.start for each in wanted)


def parts_of(whole: Coverage, tensor: MergedTensor, leaf: StateTensor) -> list[ReadTarget]:
    """The chunks that meet what this memory is of the tensor, and which boxes of it they fill.

    Raises:
        CheckpointError: they do not fill it.
    """
    memory = leaf.tensor.detach()
    here = tuple(memory.shape)
    own = Box((0,) * len(here) if leaf.offsets is None else leaf.offsets, here)
    shape = here if leaf.offsets is None else leaf.shape
    if shape != tensor.shape:
        raise ValueError(f"memory for a {shape} is given to {tensor.name}, which is {tensor.shape}")
    parts, filled = [], 0
    for index, (_, chunk) in enumerate(tensor.chunks):
        written = Box(chunk.offsets, chunk.sizes)
        if (met := common(own, written)) is None:
            continue
        part = ReadTarget.of(whole, tensor, index)
        part.copies.append((met.inside(written), box(memory, *met.inside(own))))
        parts.append(part)
        filled += met.numel
    # The chunks tile the tensor (`coverage`), so they tile each box in it: before a byte is asked for.
    if filled != memory.numel():
        raise CheckpointError(
            f"{tensor.name}: {memory.numel() - filled} of {memory.numel()} elements are in no chunk"
        )
    return parts


def _place(wanted: WantedChunk) -> tuple[str, int, str]:
    return wanted.key, wanted.chunk.start, wanted.name


@dataclass(frozen=True, slots=True)
class _Into(StrictSink):
    """The memory, as who verified bytes are for."""

    parts: Mapping[tuple[str, int, str], ReadTarget]

    def take(self, wanted: WantedChunk, spans: Sequence[BufferSpan[HostBuffer]]) -> None:
        part = self.parts[_place(wanted)]
        for inner, memory in part.copies:
            for span in spans:
                read = Box(span.offsets, span.sizes)
                if (met := common(inner, read)) is not None:
                    target = box(memory, *met.inside(inner))
                    span.frame.copy_part_out(span.start, span.sizes, met.inside(read), target, part.dtype)
