"""Values of a checkpoint on disk: what one rank wrote, to which place, and with which state.

This module holds the values alone. `codec` turns them into bytes and back, and `keys` names their places.
"""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ....providers.text import clip
from .dtypes import ITEMSIZE
from .keys import CheckpointName, checkpoint_prefix, manifest_name

#: The number of the format, and its key, which is the first of every file. Increase the number when a file changes meaning: a reader
#: refuses every other number by name, and a file without one, because versions before 0.1.0 numbered theirs under another key.
FORMAT_KEY, FORMAT = "store_format", 1

#: "full" continues bit for bit. "partial-extras" lacks the own state of ranks that were gone. "weights" lacks the
#: optimizer's moments. `checkpoint.ranking` decides when a restore takes one that is not full.
Level = Literal["full", "partial-extras", "weights"]
LEVELS: tuple[Level, ...] = ("full", "partial-extras", "weights")


def lacks(level: Level, missing: Sequence[int]) -> str:
    """Return, as text for a person, the parts that a checkpoint lacks; "" if it is complete."""
    gone = ["the optimizer's moments"] if level == "weights" else []
    return " and ".join([*gone, *([f"the extras of {named(missing)}"] if missing else [])])


def named(ranks: Sequence[int]) -> str:
    """Return ranks as text for a person."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    few = ", ".join(map(str, ranks[:8]))
    return f"ranks {few}{' …' if len(ranks) > 8 else ''}"


#: Largest number of tensors of one rank: three times the tensors of 100,000 experts with two moments each.
_MOST_TENSORS = 2**20
#: Bytes of one tensor's entry, its chunks and its digest: 319 with a name of 80 letters and the largest numbers.
_TENSOR_BYTES = 512
#: Bytes of the plain values, and of one rank number in `missing`.
_MOST_STATE, _RANK_BYTES = 64 * 2**20, 8

#: Prefix of a private name, as `private_name` writes it.
_PRIVATE = re.compile(r"\A@\d{5,}/", re.ASCII)

#: Occasion of a save. It is shown to people and decides nothing.
Kind = Literal["emergency", "background", "manual"]
KINDS: tuple[Kind, ...] = ("emergency", "background", "manual")


class Chunk(NamedTuple):
    """One box of a tensor, row-major, in one object. (A tuple, because 128 ranks make a quarter of a million.)"""

    #: Offsets of the box in the global tensor, and its sizes; () for a 0-d tensor.
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    #: Index into the manifest's `objects`.
    object: int
    #: Byte range in the object, counted from its start, safetensors header included.
    start: int
    end: int
    #: CRC32 by zlib of exactly these bytes.
    crc32: int


class TensorEntry(NamedTuple):
    """One tensor as this rank holds it. Without chunks, the rank holds the tensor and another rank writes it."""

    name: str
    #: Dtype by torch's name, without "torch.".
    dtype: str
    #: Shape of the global tensor.
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    #: Dtype of the stored bytes if it differs from `dtype` (moments rounded to bfloat16), else "".
    stored: str = ""

    @property
    def itemsize(self) -> int:
        """Return the bytes of one element, as stored."""
        return ITEMSIZE[self.stored or self.dtype]


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """One immutable object: a safetensors file."""

    #: Name inside the checkpoint's directory, such as "00000-of-00008/0000.safetensors".
    name: str
    size: int
    #: Bytes before the first tensor, and their CRC. With the CRCs of the chunks, every byte is checked.
    header: int
    header_crc32: int
    #: Directory of an earlier checkpoint of the same attempt that holds the object; "" for this checkpoint's own.
    checkpoint: str = ""


@dataclass(frozen=True, slots=True)
class RankManifest:
    """Record of everything that one rank put into one checkpoint.

    The rank puts its manifest after its objects, so that the manifest never names a missing object.
    """

    run_id: str
    step: int
    attempt: int
    save: int
    rank: int
    world: int
    objects: tuple[ObjectEntry, ...] = ()
    #: A tuple by a writer, `columns.TensorColumns` from a store.
    tensors: Sequence[TensorEntry] = ()
    #: Encoded values (`values.encoder.encode`) by registered name.
    state: Mapping[str, Any] = field(default_factory=dict)
    #: Versions of torch and Python, device, threads: plain JSON, for a warning and for people.
    environment: Mapping[str, Any] = field(default_factory=dict)
    level: Level = "full"
    kind: Kind = "background"
    #: Nonce of the process group. Manifests of two groups that got the same attempt number never mix.
    incarnation: str = ""
    #: Wall-clock seconds of the save, for people.
    created: float = 0.0
    #: CRC32 of state that other ranks should hold bit for bit like this one, if it was taken: replicas may drift
    #: apart.
    digests: Mapping[str, int] = field(default_factory=dict)
    #: Ranks that were gone, in order. The own state of each (generators, loaders, dicts) is in no manifest.
    missing: tuple[int, ...] = ()
    #: For people (`checkpoint.history`): how training came to this step. Only the first present rank has it.
    history: Mapping[str, Any] = field(default_factory=dict)
    #: Why this rank's losses make the state suspect; "" if they do not.
    suspect: str = ""
    #: The path and the type of each value of this rank that no save could hold. A restore leaves the live values there.
    left_out: tuple[str, ...] = ()

    @property
    def checkpoint(self) -> CheckpointName:
        """Return the checkpoint that it is a part of."""
        return CheckpointName(self.attempt, self.step, self.save)

    @property
    def key(self) -> str:
        """Return its own key in the store."""
        return checkpoint_prefix(self.run_id, self.checkpoint) + manifest_name(self.rank, self.world)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the objects that this rank wrote for this checkpoint."""
        return sum(entry.size for entry in self.objects if not entry.checkpoint)

    def object_key(self, index: int) -> str:
        """Return the key in the store of the object at this index."""
        entry = self.objects[index]
        return checkpoint_prefix(self.run_id, entry.checkpoint or self.checkpoint) + entry.name


def referred(manifests: Iterable[RankManifest]) -> dict[str, int]:
    """Return size by key of the objects in earlier checkpoints' directories; several ranks may name the same object."""
    return {
        checkpoint_prefix(manifest.run_id, entry.checkpoint) + entry.name: entry.size
        for manifest in manifests
        for entry in manifest.objects
        if entry.checkpoint
    }


#: Values that a manifest or a marker names as left out, and the letters of each.
MOST_LEFT_OUT, LEFT_OUT_LETTERS = 32, 200


def bounded(left_out: Sequence[str]) -> tuple[str, ...]:
    """Return the values that were left out as a manifest names them: many as the first ones and their number."""
    if (more := len(left_out) - MOST_LEFT_OUT) > 0:
        left_out = [*left_out[: MOST_LEFT_OUT - 1], f"and {more + 1} more"]
    return tuple([clip(each, LEFT_OUT_LETTERS) for each in left_out])


def left_out_of(manifests: Iterable[RankManifest]) -> tuple[str, ...]:
    """Return the values that all ranks have left out, each with its rank in a job of several ranks."""
    return bounded(
        [
            each + (_ON.format(manifest.rank) if manifest.world > 1 else "")
            for manifest in manifests
            for each in manifest.left_out
        ]
    )


#: The end of a suspicion's text in a job of several ranks.
_ON = " on rank {}"


def suspicion(manifests: Iterable[RankManifest]) -> str:
    """Return why a checkpoint is suspect, with the rank whose losses make it so; "" if it is not. One rank is enough."""
    found = next((manifest for manifest in manifests if manifest.suspect), None)
    if found is None:
        return ""
    return found.suspect + (_ON.format(found.rank) if found.world > 1 else "")


def reason_of(suspect: str, rank: int) -> str:
    """Return the part of this rank in a result of `suspicion`; "" if it names another rank."""
    on = _ON.format(rank)
    return suspect.removesuffix(on) if suspect.endswith(on) else ""


@dataclass(frozen=True, slots=True)
class CommitMarker:
    """Statement that the checkpoint was seen whole. It is a shortcut for listings: its absence proves nothing."""

    run_id: str
    step: int
    attempt: int
    save: int
    world: int
    #: Number of the checkpoint's own objects, so that a listing alone shows whether one is gone.
    objects: int
    nbytes: int
    level: Level = "full"
    kind: Kind = "background"
    created: float = 0.0
    #: Ranks that were gone, as in the manifests.
    missing: tuple[int, ...] = ()
    #: Bytes of the objects in earlier checkpoints' directories that it refers to.
    elsewhere: int = 0
    #: As in the manifests.
    history: Mapping[str, Any] = field(default_factory=dict)
    #: As in the manifests: `suspicion` of them.
    suspect: str = ""
    #: As in the manifests: `left_out_of` them.
    left_out: tuple[str, ...] = ()

    @property
    def checkpoint(self) -> CheckpointName:
        """Return the checkpoint that it marks."""
        return CheckpointName(self.attempt, self.step, self.save)

    @classmethod
    def of(cls, manifests: Iterable[RankManifest], created: float) -> CommitMarker:
        """Return the marker of a full set of manifests."""
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
            history=next((each.history for each in full if each.history), {}),
            suspect=suspicion(full),
            left_out=left_out_of(full),
        )


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """Record of one start of the job. A conditional create claims its number, which orders all its saves."""

    run_id: str
    attempt: int
    incarnation: str = ""
    world: int = 1
    #: Plain JSON for people: host, command, restored checkpoint.
    info: Mapping[str, Any] = field(default_factory=dict)
    created: float = 0.0


def most_bytes(world: int) -> int:
    """Return the size of the largest manifest that a rank in a job of `world` ranks may put, and that is read back."""
    return _MOST_STATE + _MOST_TENSORS * _TENSOR_BYTES + world * _RANK_BYTES


def private_name(rank: int, name: str) -> str:
    """Return the name of a tensor that belongs to one rank alone, such as its RNG state.

    The rank is part of the name, because equal names of several ranks are one tensor.
    """
    return f"@{rank:05d}/{name}"


def is_private(name: str) -> bool:
    """Return whether `private_name` made the name."""
    return _PRIVATE.match(name) is not None


def own_name(name: str) -> str:
    """Return the name that `private_name` was given; any other name as it is."""
    return _PRIVATE.sub("", name)


# Pause of the cyclic garbage collector, for code that makes millions of values of which none is garbage.


#: Objects made inside that are worth it: to examine them takes 10 ms.
_MADE = 100_000


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Pause the cyclic garbage collector inside: reading the manifests of 128 ranks then takes a third of the time.

    Objects made inside are moved to the oldest generation at the end, unexamined, if there are many: one more examination
    would cost a quarter again. Freeze and unfreeze move them there, at no cost. They are skipped if something is frozen
    already, by other code or by Python 3.12 itself, which starts with some hundred objects frozen. To count what is frozen
    takes 60 ns for each object: 26 ms where a script has frozen torch.

    The pause works on the main thread only, because the switch belongs to the whole process. On another thread, the
    end of the pause would undo a change that the training script made meanwhile. A collector that the script has
    switched off stays off.
    """
    if threading.current_thread() is not threading.main_thread() or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if gc.get_count()[0] > _MADE and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()
