"""Which bytes a rank reads, for any number of ranks that wrote them: the chunks that meet its part of each tensor.

Objects are read in parallel, through reused buffers, and each chunk is verified before it is copied.

A chunk's bytes never reach a tensor unless their CRC32 is the manifest's (law 6). A wrong one raises `CheckpointError`. The
caller then loads the next older complete checkpoint over everything, so training never starts from a mix.

The memory to fill may be a part of a tensor that no rank wrote in one piece. The reader then reads only the chunks that meet
this part. It reads each of them as a whole, since the CRC covers the whole chunk, and copies the part that is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from ....providers.clock import Clock
from ....providers.errors import CheckpointError
from ....providers.stores.base import BlobStore
from ...checkpoint.format.boxes import Box, common
from ...checkpoint.format.coverage import Coverage, MergedTensor
from ...checkpoint.format.dtypes import ITEMSIZE, torch_dtype
from ...checkpoint.format.manifest import Chunk
from ...checkpoint.format.safetensors_header import check_headers
from ...state.device.host_buffer import HostBuffer, box
from ...state.state_tensor import StateTensor
from .fetch import BufferSpan, Fetch, Progress, StrictSink
from .ranges import WantedChunk, plan


def read(
    store: BlobStore,
    whole: Coverage,
    into: Mapping[str, StateTensor],
    *,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> int:
    """Fill memory from a checkpoint and return the number of bytes of the chunks that were read.

    Args:
        store: the store with the checkpoint. With a `RetryingStore` the read outlives a transient failure.
        whole: the coverage that the manifests prove.
        into: memory to fill, with its place in the tensor, by the tensor's name in the checkpoint.
        progress: called with (bytes read, bytes in total), on this thread.
        clock: measures which request lags behind the others.

    Raises:
        CheckpointError: bytes differ from the saved ones. Tensors may be partly filled.
        UnsupportedFormatError: this version cannot read the checkpoint. Nothing was filled.
        StoreError: the store failed.
    """
    parts: list[ReadTarget] = []
    for name, state_tensor in into.items():
        parts += parts_of(whole, whole.tensors[name], state_tensor)
    _prove(whole, {part.wanted.key for part in parts})
    return fill(store, parts, progress=progress, clock=clock)


def _prove(whole: Coverage, keys: Collection[str]) -> None:
    """Check that the objects of these keys hold the tensors that the manifests list."""
    for manifest in whole.manifests:
        count = len(manifest.objects)
        if objects := [index for index in range(count) if manifest.object_key(index) in keys]:
            check_headers(manifest, objects)


@dataclass(frozen=True, slots=True)
class ReadTarget:
    """A chunk to read, and the memory for its elements."""

    wanted: WantedChunk
    #: Type of the chunk's elements as stored.
    dtype: torch.dtype
    #: Boxes of the chunk, counted from the chunk's corner, each with the tensor of the same sizes that it fills.
    copies: list[tuple[Box, torch.Tensor]] = field(default_factory=list)

    @classmethod
    def of(cls, whole: Coverage, tensor: MergedTensor, rank: int, chunk: Chunk) -> ReadTarget:
        """Return the target for one chunk of a merged tensor, which this rank wrote, with nothing to copy yet."""
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
    """Fill memory as `read` does, from the targets that the caller has chosen. A chunk with two targets is read once."""
    by_place: dict[tuple[str, int, str], ReadTarget] = {}
    for part in parts:
        if (first := by_place.setdefault(_place(part.wanted), part)) is not part:
            first.copies.extend(part.copies)
    wanted = [part.wanted for part in by_place.values()]
    make = partial(HostBuffer, touched=False)
    Fetch(store, plan(wanted), make, _Into(by_place), progress=progress, clock=clock).run()
    return sum(each.chunk.end - each.chunk.start for each in wanted)


def parts_of(whole: Coverage, tensor: MergedTensor, state_tensor: StateTensor) -> list[ReadTarget]:
    """Return the chunks that meet this memory's part of the tensor, and the boxes of the memory that they fill.

    Args:
        whole: the coverage of the checkpoint.
        tensor: the tensor as the manifests describe it.
        state_tensor: the memory, with its place in the tensor.

    Raises:
        CheckpointError: the chunks do not fill the memory.
    """
    memory = state_tensor.tensor.detach()
    here = tuple(memory.shape)
    own = Box((0,) * len(here) if state_tensor.offsets is None else state_tensor.offsets, here)
    shape = here if state_tensor.offsets is None else state_tensor.shape
    if shape != tensor.shape:
        raise ValueError(f"memory for a {shape} is given to {tensor.name}, which is {tensor.shape}")
    parts, filled = [], 0
    for rank, chunk, met in tensor.meeting(own):
        part = ReadTarget.of(whole, tensor, rank, chunk)
        part.copies.append((met.inside(Box(chunk.offsets, chunk.sizes)), box(memory, *met.inside(own))))
        parts.append(part)
        filled += met.numel
    # The chunks tile the tensor (`coverage`), so they tile each box in it. Checked before the first request.
    if filled != memory.numel():
        raise CheckpointError(
            f"{tensor.name}: {memory.numel() - filled} of {memory.numel()} elements are in no chunk"
        )
    return parts


def _place(wanted: WantedChunk) -> tuple[str, int, str]:
    return wanted.key, wanted.chunk.start, wanted.name


@dataclass(frozen=True, slots=True)
class _Into(StrictSink):
    """The sink that copies verified bytes into their memory."""

    parts: Mapping[tuple[str, int, str], ReadTarget]

    def take(self, wanted: WantedChunk, spans: Sequence[BufferSpan[HostBuffer]]) -> None:
        part = self.parts[_place(wanted)]
        for inner, memory in part.copies:
            for span in spans:
                read = Box(span.offsets, span.sizes)
                if (met := common(inner, read)) is not None:
                    target = box(memory, *met.inside(inner))
                    span.buffer.copy_part_out(span.start, span.sizes, met.inside(read), target, part.dtype)
