"""The same proof as `coverage`, for manifests that are read and dropped one after the other.

A rank that commits for all others does so beside training, on a thread. All manifests of 128 ranks at once are two
million values. The garbage collector, which must not be switched off there, would examine them and all of
training's objects again and again. That took 5 s of 7, each time with the GIL held (measured). So a chunk is kept
as its numbers in an array, which the collector never examines. Only one tensor at a time is built again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import accumulate

from .coverage import MergedTensor, disagree, full_set, tile
from .entries import DescribedTensor
from .manifest import Chunk, RankManifest, TensorEntry

#: Constructor of a NamedTuple, as in `entries`.
_new = tuple.__new__
#: Count of the fixed numbers of a chunk: rank, object, start, end, crc32. Its offsets and sizes follow.
_FIXED = 5


@dataclass(slots=True)
class StreamingCoverage:
    """Manifests of one checkpoint, added one by one. The order of ranks is the fastest."""

    #: Manifests by rank, without their tensors and state.
    manifests: dict[int, RankManifest] = field(default_factory=dict)
    #: Descriptions for `open_manifest`, from all manifests added here.
    known: dict[str, DescribedTensor] = field(default_factory=dict)
    _tensors: dict[str, tuple[MergedTensor, array[int]]] = field(default_factory=dict)

    def add(self, manifest: RankManifest, tensors: Iterable[TensorEntry]) -> None:
        """Add one manifest. After an error, this object proves nothing any more.

        Raises:
            CheckpointError: one of its tensors differs from an earlier manifest's. Errors of `tensors` pass
                through.
        """
        rank, known = manifest.rank, self._tensors
        for name, dtype, shape, chunks, stored in tensors:
            entry = known.get(name)
            if entry is None:
                entry = known[name] = (MergedTensor(name, dtype, shape, stored, []), array("q"))
            merged, numbers = entry
            if merged.dtype != dtype or merged.shape != shape or merged.stored != stored:
                raise disagree(rank, name, dtype, shape, merged)
            for offsets, sizes, index, start, end, crc32 in chunks:
                numbers.extend((rank, index, start, end, crc32, *offsets, *sizes))
        self.manifests[rank] = replace(manifest, tensors=(), state={})

    def check(self) -> None:
        """Raise CheckpointError if the manifests are not a whole checkpoint, as `coverage` does."""
        full_set(self.manifests.values())
        for merged, numbers in self._tensors.values():
            if _in_rows(merged.shape, numbers):
                continue
            chunks = _chunks(numbers, len(merged.shape))
            tile(MergedTensor(merged.name, merged.dtype, merged.shape, merged.stored, chunks))


def _in_rows(shape: tuple[int, ...], numbers: array[int]) -> bool:
    """Whether these are whole rows, one chunk after the other, from the first to the last.

    `coverage` asks the same first; here the input is columns of numbers.
    """
    dims = len(shape)
    if not dims:
        return False
    columns = [numbers[at :: _FIXED + 2 * dims] for at in range(_FIXED, _FIXED + 2 * dims)]
    offsets, sizes = columns[:dims], columns[dims:]
    ends = [0, *accumulate(sizes[0])]
    return (
        ends[-1] == shape[0]
        and all(sizes[0])
        and offsets[0].tolist() == ends[:-1]
        and not any(map(any, offsets[1:]))
        and all(set(column) <= {size} for column, size in zip(sizes[1:], shape[1:], strict=True))
    )


def _chunks(numbers: array[int], dims: int) -> list[tuple[int, Chunk]]:
    width = _FIXED + 2 * dims
    flat = numbers.tolist()
    chunks = []
    for at in range(0, len(flat), width):
        rank, index, start, end, crc32, *box = flat[at : at + width]
        fields = (tuple(box[:dims]), tuple(box[dims:]), index, start, end, crc32)
        chunks.append((rank, _new(Chunk, fields)))
    return chunks
