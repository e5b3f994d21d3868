"""The same proof as `coverage`, of manifests that are read and forgotten one after the other.

Where a rank commits for all others it does so beside training, on a thread. All manifests of 128 ranks at once are two
million values, and the garbage collector, which is not ours to switch off there, goes through them and through all of
training's time and again: 5 s of 7, and each time the GIL is held (measured). So a chunk is kept as its numbers, in an
array, which the collector never looks into; and no more than one tensor is put together again at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import accumulate

from .coverage import MergedTensor, disagree, full_set, tile
from .entries import DescribedTensor
from .manifest import Chunk, RankManifest, TensorEntry

#: As in `entries`.
_new = tuple.__new__
#: Of each chunk, in this order, and then its offsets and sizes: rank, object, start, end, crc32.
_FIXED = 5


@dataclass(slots=True)
class StreamingCoverage:
    """Manifests of one checkpoint. Add them in the order of their ranks: it is the fastest."""

    #: By rank, without their tensors and state.
    manifests: dict[int, RankManifest] = field(default_factory=dict)
    #: For `open_manifest`, of all that are added here.
    known: dict[str, DescribedTensor] = field(default_factory=dict)
    _tensors: dict[str, tuple[MergedTensor, array[int]]] = field(default_factory=dict)

    def add(self, manifest: RankManifest, tensors: Iterable[TensorEntry]) -> None:
        """One more. Where it raises, nothing more can be said of them all.

        Raises:
            CheckpointError: one of its tensors is another than before; and whatever reading them raises.
        """
        rank, known = manifest.rank, self._tensors
        for name, dtype, shape, chunks, stored in tensors:
            held = known.get(name)
            if held is None:
                held = known[name] = (MergedTensor(name, dtype, shape, stored, []), array("q"))
            merged, numbers = held
            if merged.dtype != dtype or merged.shape != shape or merged.stored != stored:
                raise disagree(rank, name, dtype, shape, merged)
            for offsets, sizes, index, start, end, crc32 in chunks:
                numbers.extend((rank, index, start, end, crc32, *offsets, *sizes))
        self.manifests[rank] = replace(manifest, tensors=(), state={})

    def check(self) -> None:
        """Raises CheckpointError where they are no whole: as `coverage` does."""
        full_set(self.manifests.values())
        for merged, numbers in self._tensors.values():
            if _in_rows(merged.shape, numbers):
                continue
            chunks = _chunks(numbers, len(merged.shape))
            tile(MergedTensor(merged.name, merged.dtype, merged.shape, merged.stored, chunks))


def _in_rows(shape: tuple[int, ...], numbers: array[int]) -> bool:
    """Whether these are whole rows, one chunk after the other, from the first to the last: as `coverage` asks first, too, but
    of columns of numbers."""
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
