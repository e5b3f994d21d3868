"""Objects back into tensors: in parallel, through reused frames, each chunk verified before it is copied in.

A chunk's bytes never reach a tensor unless their CRC32 is the manifest's (law 6). What fails is a
`CheckpointError`: the caller then loads the next older whole checkpoint over everything, so training never
starts from a mix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import torch

from ...providers.clock import Clock
from ...providers.errors import CheckpointError, StoreError
from ...providers.stores.store import BlobStore
from ..format.coverage import Coverage
from ..format.dtypes import ITEMSIZE, torch_dtype
from .frames import Frame, box
from .ranges import Load, Wanted, plan
from .reading import Progress, Reading
from .taker import Span


def read(
    store: BlobStore,
    whole: Coverage,
    into: Mapping[str, torch.Tensor],
    *,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> int:
    """Fill each tensor of `into` from the checkpoint; returns the bytes read.

    Args:
        store: where it is. One that asks again (`PatientStore`) makes the reading outlive a failure for now.
        whole: what the manifests say.
        into: tensors by name.
        progress: told how far it is, on this thread.
        clock: by which a request lags behind the others.

    Raises:
        CheckpointError: bytes are not the ones that were saved. Tensors may be partly filled.
        NewerFormatError: this version cannot read it. Nothing was filled.
        StoreError: the store failed.
    """
    wanted = []
    for name in into:
        merged = whole.tensors[name]
        itemsize = ITEMSIZE[merged.stored or merged.dtype]
        for rank, chunk in merged.chunks:
            wanted.append(Wanted(whole.manifests[rank].object_key(chunk.object), chunk, itemsize, name))
    make = partial(Frame, touched=False)
    Reading(store, plan(wanted), make, _Into(whole, into), progress=progress, clock=clock).run()
    return sum(each.chunk.end - each.chunk.start for each in wanted)


@dataclass(frozen=True, slots=True)
class _Into:
    """The tensors, as those whom verified bytes are for."""

    whole: Coverage
    tensors: Mapping[str, torch.Tensor]

    def take(self, wanted: Wanted, spans: Sequence[Span[Frame]]) -> None:
        merged = self.whole.tensors[wanted.name]
        dtype = torch_dtype(merged.stored or merged.dtype)
        target = box(self.tensors[wanted.name].detach(), wanted.chunk.offsets, wanted.chunk.sizes)
        for span in spans:
            part = box(target, span.offsets, span.sizes)
            span.frame.copy_out(span.start, span.end, part, dtype)

    def damaged(self, wanted: Wanted) -> NoReturn:
        chunk = wanted.chunk
        raise CheckpointError(
            f"{wanted.key}: bytes {chunk.start} to {chunk.end} ({wanted.name}) are damaged: "
            "their checksum is not the one that was saved"
        )

    def lost(self, load: Load, error: StoreError) -> NoReturn:
        raise error
