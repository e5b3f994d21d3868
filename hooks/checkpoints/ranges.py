"""Chunks into requests: which bytes are asked for at once, and in which order. Values in, values out.

A request holds whole chunks, or a part of one that is larger than a request. What lies side by side in an object comes
in one request; so does what a small gap parts, where the gap's bytes cost less than another request. The largest come
first: what is on its way last is small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from ..format.codec import NewerFormatError
from ..format.manifest import Chunk

#: Bytes of one request. S3 advises ranges of 8 to 16 MiB; at the 50 to 95 MB/s of one connection this is a tenth of a
#: second, so the first byte's 10 to 30 ms do not count much and a request that is sent again costs little.
REQUEST_BYTES = 8 * 2**20
#: Bytes that nobody wants and that are read all the same: 0.8 ms of one connection, where a request costs 1 to 2 ms of
#: this machine's CPU in an SDK, and the store's price.
GAP_BYTES = 64 * 2**10
#: Requests that one chunk may take. Ours hold 32 MiB and take 4 to 9, by how its rows fall.
MOST_PARTS = 24


class Wanted(NamedTuple):
    """A chunk that is to be read."""

    key: str
    chunk: Chunk
    #: Bytes of one element, as stored.
    itemsize: int
    #: The tensor's; "" for an object's header.
    name: str


class Range(NamedTuple):
    """One request: bytes of one object, and of a chunk that takes several, the box in it that they are."""

    key: str
    start: int
    end: int
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """What is verified at once: one request with whole chunks in it, or one chunk and its requests."""

    ranges: tuple[Range, ...]
    chunks: tuple[Wanted, ...]

    @property
    def nbytes(self) -> int:
        """What its requests ask for, gaps included."""
        return sum([each.end - each.start for each in self.ranges])


def plan(wanted: Iterable[Wanted], limit: int = REQUEST_BYTES, gap: int = GAP_BYTES) -> list[Load]:
    """The requests for these chunks, largest load first, each chunk in exactly one load. Chunks without bytes need none.

    Raises:
        NewerFormatError: a chunk is larger than this version can hold before it is verified.
    """
    loads = []
    run: list[Wanted] = []
    for each in sorted(wanted, key=lambda each: (each.key, each.chunk.start, each.chunk.end)):
        chunk = each.chunk
        if chunk.start == chunk.end:
            continue
        if chunk.end - chunk.start > limit:
            loads.append(_cut(each, limit))
            continue
        if run and (
            run[0].key != each.key
            or chunk.start - run[-1].chunk.end > gap
            or chunk.end - run[0].chunk.start > limit
        ):
            loads.append(_joined(run))
            run = []
        run.append(each)
    if run:
        loads.append(_joined(run))
    loads.sort(key=lambda load: (-load.nbytes, load.ranges[0]))
    return loads


def _joined(run: Sequence[Wanted]) -> Load:
    end = max(each.chunk.end for each in run)
    return Load((Range(run[0].key, run[0].chunk.start, end),), tuple(run))


def _cut(each: Wanted, limit: int) -> Load:
    chunk, at = each.chunk, each.chunk.start
    ranges = []
    for offsets, sizes in _boxes(chunk.sizes, limit // each.itemsize):
        end = at + prod(sizes) * each.itemsize
        ranges.append(Range(each.key, at, end, offsets, sizes))
        at = end
    if len(ranges) > MOST_PARTS:
        raise NewerFormatError(
            f"{each.key}: {each.name} has a chunk of {(chunk.end - chunk.start) >> 20} MiB, "
            f"which this version cannot hold to verify it: read it with a newer spotguard"
        )
    return Load(tuple(ranges), (each,))


def _boxes(sizes: tuple[int, ...], budget: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Boxes of about equal size and at most `budget` elements that tile `sizes` in row-major order: (corner, sizes)."""
    if prod(sizes) <= budget:
        yield (0,) * len(sizes), sizes
        return
    row = prod(sizes[1:])
    if row <= budget:
        most = budget // row
        rows = -(-sizes[0] // -(-sizes[0] // most))
        for first in range(0, sizes[0], rows):
            yield (first, *(0,) * (len(sizes) - 1)), (min(rows, sizes[0] - first), *sizes[1:])
        return
    for index in range(sizes[0]):
        for corner, inner in _boxes(sizes[1:], budget):
            yield (index, *corner), (1, *inner)
