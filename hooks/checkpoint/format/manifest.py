"""A checkpoint's values on disk: what one rank has written, where, and what else it had to say.

These are the values alone; `codec` turns them into bytes and back, `keys` says where they lie.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from .dtypes import ITEMSIZE
from .keys import CheckpointName, checkpoint_prefix

#: The newest format that this version reads. Raised when a reader of the old format would misread the new one. Unknown
#: fields are skipped, so saying more is free.
FORMAT = 2

#: "full" continues bit for bit. "partial-extras" lacks what ranks that were gone had each of its own. "weights" lacks the
#: optimizer's moments. `checkpoint.ranking` says when a restore takes one that is not full.
Level = Literal["full", "partial-extras", "weights"]
LEVELS: tuple[Level, ...] = ("full", "partial-extras", "weights")


def format_of(level: Level) -> int:
    """The lowest format whose readers understand this level: an older spotguard may read the same store."""
    return 2 if level == "partial-extras" else 1


def lacks(level: Level, missing: Sequence[int]) -> str:
    """What a checkpoint does not hold, for a person; "" where it holds everything."""
    gone = ["the optimizer's moments"] if level == "weights" else []
    return " and ".join([*gone, *([f"the extras of {named(missing)}"] if missing else [])])


def named(ranks: Sequence[int]) -> str:
    """Ranks, for a person."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    few = ", ".join(map(str, ranks[:8]))
    return f"ranks {few}{' …' if len(ranks) > 8 else ''}"


#: Tensors that one rank holds at most: three times those of 100,000 experts with two moments each.
_MOST_TENSORS = 2**20
#: Bytes of one tensor's entry, its chunks and its digest: 319 with a name of 80 letters and the largest numbers.
_TENSOR_BYTES = 512
#: Bytes of the plain values, and of a rank's number among `missing`.
_MOST_STATE, _RANK_BYTES = 64 * 2**20, 8

#: What a save was made for. Shown to people, decides nothing.
Kind = Literal["emergency", "background", "manual"]
KINDS: tuple[Kind, ...] = ("emergency", "background", "manual")


class Chunk(NamedTuple):
    """A box of one tensor, row-major, in one object. (A tuple, because 128 ranks make a quarter of a million.)"""

    #: Of the box in the global tensor; () for a 0-d one.
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    #: Which of the manifest's `objects`.
    object: int
    #: Bytes in the object, its safetensors header counted.
    start: int
    end: int
    #: zlib's, of exactly these bytes.
    crc32: int


class TensorEntry(NamedTuple):
    """One tensor as this rank holds it. No chunks: it holds the tensor, and another rank writes it."""

    name: str
    #: As torch says it, without "torch.".
    dtype: str
    #: The global one.
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    #: The dtype of the bytes where they are not `dtype` (moments rounded to bfloat16), else "".
    stored: str = ""

    @property
    def itemsize(self) -> int:
        """Bytes of one element, as stored."""
        return ITEMSIZE[self.stored or self.dtype]


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """One immutable object: a safetensors file."""

    #: "00000-of-00008/0000.safetensors", inside the checkpoint's folder.
    name: str
    size: int
    #: Bytes before the first tensor's, and their CRC: with the chunks' CRCs every byte is checked.
    header: int
    header_crc32: int
    #: The folder of an earlier checkpoint of the same attempt, where the object lies there; "" for this one's own.
    checkpoint: str = ""


@dataclass(frozen=True, slots=True)
class RankManifest:
    """All that one rank put into one checkpoint. Put after its objects, so that it never names what is not there."""

    run_id: str
    step: int
    attempt: int
    save: int
    rank: int
    world: int
    objects: tuple[ObjectEntry, ...] = ()
    tensors: tuple[TensorEntry, ...] = ()
    #: Encoded values (`encoding.encode`) by registered name.
    state: Mapping[str, Any] = field(default_factory=dict)
    #: torch's version, device, threads, python: plain JSON, for a warning and for people.
    environment: Mapping[str, Any] = field(default_factory=dict)
    level: Level = "full"
    kind: Kind = "background"
    #: The nonce of the process group. Manifests of two groups that were given one attempt number never mix.
    incarnation: str = ""
    #: Wall seconds, for people.
    created: float = 0.0
    #: CRC32 of what other ranks should hold bit for bit as this one does, where it was taken: replicas may drift apart.
    digests: Mapping[str, int] = field(default_factory=dict)
    #: Ranks that were gone, in order: what was each one's own (generators, loaders, dicts) is in no manifest.
    missing: tuple[int, ...] = ()
    format: int = 1

    @property
    def checkpoint(self) -> CheckpointName:
        """The checkpoint that it is a part of."""
        return CheckpointName(self.attempt, self.step, self.save)

    @property
    def nbytes(self) -> int:
        """Bytes of the objects that this rank wrote for this checkpoint."""
        return sum(entry.size for entry in self.objects if not entry.checkpoint)

    def object_key(self, index: int) -> str:
        """Where the object of a chunk lies in the store."""
        entry = self.objects[index]
        return checkpoint_prefix(self.run_id, entry.checkpoint or self.checkpoint) + entry.name


def referred(manifests: Iterable[RankManifest]) -> dict[str, int]:
    """Size by key of the objects in earlier checkpoints' folders: several ranks may name the same one."""
    return {
        checkpoint_prefix(manifest.run_id, entry.checkpoint) + entry.name: entry.size
        for manifest in manifests
        for entry in manifest.objects
        if entry.checkpoint
    }


@dataclass(frozen=True, slots=True)
class CommitMarker:
    """Says that the checkpoint was seen whole. A shortcut for listings: its absence proves nothing."""

    run_id: str
    step: int
    attempt: int
    save: int
    world: int
    #: The checkpoint's own objects, so that a listing alone shows whether one is gone.
    objects: int
    nbytes: int
    level: Level = "full"
    kind: Kind = "background"
    created: float = 0.0
    #: As in the manifests.
    missing: tuple[int, ...] = ()
    #: Bytes of the objects in earlier checkpoints' folders that it refers to. Older markers do not say it.
    elsewhere: int = 0
    format: int = 1

    @property
    def checkpoint(self) -> CheckpointName:
        """The checkpoint that it marks."""
        return CheckpointName(self.attempt, self.step, self.save)

    @classmethod
    def of(cls, manifests: Iterable[RankManifest], created: float) -> CommitMarker:
        """The marker of a full set of manifests."""
        full = tuple(manifests)
        first = full[0]
        own = [entry for manifest in full for entry in manifest.objects if not entry.checkpoint]
        return cls(
            run_id=first.run_id,
            step=first.step,
            attempt=first.attempt,
            save=first.save,
            world=first.world,
            objects=len(own),
            nbytes=sum(entry.size for entry in own),
            level=first.level,
            kind=first.kind,
            created=created,
            missing=first.missing,
            elsewhere=sum(referred(full).values()),
            format=format_of(first.level),
        )


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One start of the job. Its number is claimed by conditional create, and orders all that it saves."""

    run_id: str
    attempt: int
    incarnation: str = ""
    world: int = 1
    #: Plain JSON for people: host, command, what it restored from.
    info: Mapping[str, Any] = field(default_factory=dict)
    created: float = 0.0
    format: int = 1


def most_bytes(world: int) -> int:
    """The largest manifest that one rank of so many may put, and that is read back."""
    return _MOST_STATE + _MOST_TENSORS * _TENSOR_BYTES + world * _RANK_BYTES


def private_name(rank: int, name: str) -> str:
    """The name of a tensor that belongs to one rank alone (its RNG state): equal names of several ranks are one tensor."""
    return f"@{rank:05d}/{name}"


# The cyclic garbage collector at rest, where millions of values are made of which none is garbage.


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Look for no cyclic garbage inside: reading the manifests of 128 ranks takes a third of the time.

    What was made meanwhile is old at the end, unseen: to look through it once more would cost a quarter again. (To freeze and
    unfreeze is what moves it there, at no cost; not where something is frozen already: by somebody, or by Python 3.12 itself,
    which starts with some hundred objects frozen.)

    On the main thread only: the switch is the whole process's, and what a training script does to it while a thread of
    ours reads would be undone at the end. It is only put off; who has switched the collector off keeps it so.
    """
    if threading.current_thread() is not threading.main_thread() or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()
