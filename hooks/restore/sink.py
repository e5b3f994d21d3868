"""What a reading hands on, and to whom: a chunk's bytes, where they lie in reused frames, once they are verified."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NoReturn, Protocol

from ...providers.errors import CheckpointError, StoreError
from ..checkpoint.format import crc
from ..save.upload.buffers import B
from .ranges import ReadBatch, WantedChunk


@dataclass(frozen=True, slots=True)
class BufferSpan(Generic[B]):
    """Bytes of a chunk in a frame, and which box of the chunk they are."""

    frame: B
    start: int
    end: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def view(self) -> memoryview:
        return self.frame.view(self.start, self.end)


class ChunkSink(Protocol[B]):
    """Who the bytes are for. Called by the reading threads, several at once; what it raises ends the reading."""

    def take(self, wanted: WantedChunk, spans: Sequence[BufferSpan[B]]) -> None:
        """The chunk's bytes, which are the ones that were saved. The frames are reused afterwards."""
        ...

    def damaged(self, wanted: WantedChunk) -> None:
        """Its bytes are not the ones that were saved, twice."""
        ...

    def lost(self, load: ReadBatch, error: StoreError) -> None:
        """An object is gone, or too short, twice."""
        ...


class StrictSink:
    """Of a taker whom nothing less than every byte will do."""

    __slots__ = ()

    def damaged(self, wanted: WantedChunk) -> NoReturn:
        chunk = wanted.chunk
        raise CheckpointError(
            f"{wanted.key}: bytes {chunk.start} to {chunk.end} ({wanted.name}) are damaged: "
            "their checksum is not the one that was saved"
        )

    def lost(self, load: ReadBatch, error: StoreError) -> NoReturn:
        raise error


def placed(load: ReadBatch, wanted: WantedChunk, frames: Sequence[B]) -> Iterator[BufferSpan[B]]:
    """Where a chunk's bytes are, of a load whose requests were read into these frames; in order."""
    chunk = wanted.chunk
    if len(load.ranges) == 1:
        at = chunk.start - load.ranges[0].start
        yield BufferSpan(frames[0], at, at + chunk.end - chunk.start, (0,) * len(chunk.sizes), chunk.sizes)
        return
    for frame, each in zip(frames, load.ranges, strict=True):
        yield BufferSpan(frame, 0, each.end - each.start, each.offsets, each.sizes)


def crc32(spans: Sequence[BufferSpan[B]]) -> int:
    """Of all of them one behind the other. The GIL is let go."""
    found = 0
    for span in spans:
        found = crc.crc32(span.view, found)
    return found
