"""Sinks, which take the verified bytes of a read, and the spans of reused frames that hold a chunk's bytes."""

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
    """Bytes of a chunk in a frame, with the box of the chunk that these bytes fill."""

    frame: B
    start: int
    end: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def view(self) -> memoryview:
        return self.frame.view(self.start, self.end)


class ChunkSink(Protocol[B]):
    """The taker of the verified bytes. Reading threads call it, several at once; an exception from it ends the read."""

    def take(self, wanted: WantedChunk, spans: Sequence[BufferSpan[B]]) -> None:
        """Take a chunk's bytes, whose checksum is the saved one. The frames are reused after the call."""
        ...

    def damaged(self, wanted: WantedChunk) -> None:
        """Take note that the chunk's bytes were wrong in two reads."""
        ...

    def lost(self, load: ReadBatch, error: StoreError) -> None:
        """Take note that an object of the batch is gone, or was too short in two reads."""
        ...


class StrictSink:
    """A base for sinks that need every byte: it raises if a chunk is damaged or lost."""

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
    """Yield the spans of the frames that hold a chunk's bytes, in order.

    Args:
        load: the batch with the chunk.
        frames: the frames that hold the batch's requests, one for each.
    """
    chunk = wanted.chunk
    if len(load.ranges) == 1:
        at = chunk.start - load.ranges[0].start
        yield BufferSpan(frames[0], at, at + chunk.end - chunk.start, (0,) * len(chunk.sizes), chunk.sizes)
        return
    for frame, each in zip(frames, load.ranges, strict=True):
        yield BufferSpan(frame, 0, each.end - each.start, each.offsets, each.sizes)


def crc32(spans: Sequence[BufferSpan[B]]) -> int:
    """Return the CRC32 of all spans, one after the other. It releases the GIL."""
    checksum = 0
    for span in spans:
        checksum = crc.crc32(span.view, checksum)
    return checksum
