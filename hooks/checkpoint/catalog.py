"""What checkpoints a run has, and which of them are whole: one listing, then manifests by name.

The marker is a shortcut for listings meant for people. A restore never trusts it: it needs the manifests anyway, and
they say more.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ...providers.errors import CheckpointError, NotFoundError
from ...providers.run_id import is_run_id
from ...providers.stores.base import BlobStore, ObjectInfo
from .format.codec import NewerFormatError, decode_manifests, decode_marker
from .format.coverage import Coverage, MergedTensor, coverage
from .format.keys import (
    MARKER,
    CheckpointName,
    checkpoint_prefix,
    checkpoints_prefix,
    manifest_name,
    parse_manifest_name,
    parse_object_name,
)
from .format.manifest import CommitMarker, Kind, Level, RankManifest, most_bytes, referred

log = logging.getLogger("spotguard")

#: Manifests of many ranks come side by side: each is one small request, and requests have latency.
_FETCHERS = 16

#: "newer": of a format that only a newer spotguard reads; it may be good.
Status = Literal["whole", "partial", "damaged", "newer"]


class PartialCheckpoint(CheckpointError):
    """A checkpoint lacks a rank's manifest: a save that is under way, or that never ended."""


class CheckpointGone(PartialCheckpoint):
    """It was there when the store was listed, and is not any more: pruned, perhaps."""


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """One checkpoint as a listing shows it."""

    run_id: str
    name: CheckpointName
    #: Size by name inside the folder.
    files: Mapping[str, int]

    @property
    def prefix(self) -> str:
        """What the keys of its objects begin with."""
        return checkpoint_prefix(self.run_id, self.name)


@dataclass(frozen=True, slots=True)
class WholeCheckpoint:
    """A checkpoint whose every byte is known by place and CRC, and said by the store to be there."""

    run_id: str
    name: CheckpointName
    manifests: tuple[RankManifest, ...]
    tensors: Mapping[str, MergedTensor]
    #: By rank whose extras are missing: the one whose extras stand in for them (`ranking.stand_ins`).
    stand_ins: Mapping[int, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of its objects, and of those in earlier checkpoints' folders that it refers to."""
        return self.written + sum(referred(self.manifests).values())

    @property
    def written(self) -> int:
        """Bytes of its own objects."""
        return sum(manifest.nbytes for manifest in self.manifests)

    @property
    def level(self) -> Level:
        return self.manifests[0].level

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks whose extras it lacks."""
        return self.manifests[0].missing


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A line of `spotguard ls`."""

    run_id: str
    name: CheckpointName
    status: Status
    #: Why it is not whole, else "".
    reason: str
    #: Bytes of all objects in its folder; of a whole one, also of those elsewhere that it refers to.
    nbytes: int
    marked: bool
    #: As the names in its folder say it; None where they disagree, or say nothing.
    world: int | None = None
    #: None where no marker and no manifest could be read.
    level: Level | None = None
    kind: Kind | None = None
    created: float | None = None
    #: Ranks whose extras it lacks.
    missing: tuple[int, ...] = ()


def scan(store: ReadableStore, run_id: str, *, timeout: float | None = None) -> list[CheckpointFolder]:
    """All checkpoints of a run, newest first, in one listing."""
    prefix = checkpoints_prefix(run_id)
    found: dict[CheckpointName, dict[str, int]] = {}
    for info in store.list(prefix, timeout=timeout):
        folder, _, rest = info.key[len(prefix) :].partition("/")
        if rest and (name := CheckpointName.parse(folder)) is not None:
            found.setdefault(name, {})[rest] = info.size
    return [CheckpointFolder(run_id, name, found[name]) for name in sorted(found, reverse=True)]


def examine(
    store: ReadableStore,
    folder: CheckpointFolder,
    folders: list[CheckpointFolder],
    *,
    timeout: float | None = None,
) -> WholeCheckpoint:
    """Read a checkpoint's manifests and hold them against the listing.

    Raises:
        Partial: a rank's manifest is not there; `CheckpointGone`, where the listing had it.
        CheckpointError: it is damaged; says where.
    """
    world = _world(folder)
    names = [manifest_name(rank, world) for rank in range(world)]
    if missing := [name for name in names if name not in folder.files]:
        raise PartialCheckpoint(
            f"{len(missing)} of {world} manifests are missing ({missing[0]} is the first)"
        )
    for name in names:
        check_size(folder, name, world)
    try:
        manifests = _fetch(store, [folder.prefix + name for name in names], timeout)
    except NotFoundError as error:
        raise CheckpointGone(f"it went away while it was read ({error})") from error
    merged = coverage(manifests)
    _belongs(merged, folder)
    _check_objects(merged, folder, folders)
    return WholeCheckpoint(folder.run_id, folder.name, merged.manifests, merged.tensors)


def check_size(folder: CheckpointFolder, name: str, world: int) -> None:
    """Raise CheckpointError where a manifest is too large to be one: before it is read into memory."""
    if (size := folder.files[name]) > (most := most_bytes(world)):
        raise CheckpointError(
            f"{name} has {size} bytes, and no manifest of {world} ranks has more than {most}"
        )


def whole_checkpoints(
    store: ReadableStore,
    run_id: str,
    *,
    step: int | None = None,
    levels: tuple[Level, ...] = ("full",),
    skipped: Callable[[CheckpointName, CheckpointError], None] | None = None,
    timeout: float | None = None,
) -> Iterator[WholeCheckpoint]:
    """Whole checkpoints, newest first, each examined when it is asked for: a restore falls back along this.

    Args:
        store: where.
        run_id: whose.
        step: only those of this step.
        levels: which may be restored.
        skipped: told of each that is not whole, with the reason; without it `passed_over` is.
        timeout: of each request.

    Raises:
        NewerFormatError: the next one was written by a newer spotguard. It may be good, and going back behind it
            unasked would throw its steps away.
    """
    folders = scan(store, run_id, timeout=timeout)
    for folder in folders:
        if step is not None and folder.name.step != step:
            continue
        try:
            whole = examine(store, folder, folders, timeout=timeout)
        except NewerFormatError:
            raise
        except CheckpointError as error:
            if skipped is not None:
                skipped(folder.name, error)
            else:
                passed_over(run_id, folder.name, error)
            continue
        if whole.level in levels:
            yield whole


def passed_over(run_id: str, name: CheckpointName, error: CheckpointError) -> None:
    """Say of a checkpoint that it is not whole, where that is damage."""
    if not isinstance(error, PartialCheckpoint):
        log.warning("checkpoint %s of run %s is passed over: %s", name, run_id, error)


def find_whole(
    store: BlobStore,
    run_id: str,
    *,
    step: int | None = None,
    levels: tuple[Level, ...] = ("full",),
    timeout: float | None = None,
) -> WholeCheckpoint | None:
    """The newest whole checkpoint: highest (attempt, step, save)."""
    return next(whole_checkpoints(store, run_id, step=step, levels=levels, timeout=timeout), None)


def list_checkpoints(
    store: BlobStore, run_id: str, *, deep: bool = False, timeout: float | None = None
) -> list[Checkpoint]:
    """Every checkpoint of a run with its status, newest first. No checkpoint any more, and left out, is a folder of which
    pruning has left only what newer ones refer to.

    Args:
        store: where.
        run_id: whose.
        deep: read all manifests even where the marker and the listing agree.
        timeout: of each request.
    """
    folders = scan(store, run_id, timeout=timeout)
    found = [_describe(store, folder, folders, deep, timeout) for folder in folders]
    bare = [folder for folder in folders if not any(map(parse_manifest_name, folder.files))]
    needed: set[str] = set()
    for each, folder in zip(found, folders, strict=True):
        refers = each.status == "whole" and each.nbytes > _objects(folder)[1]
        if refers and any(other.name.attempt == each.name.attempt for other in bare):
            with suppress(CheckpointError, NotFoundError):  # the next look says it of this one
                needed |= referred(examine(store, folder, folders, timeout=timeout).manifests).keys()
    kept = {each.name for each in bare if {each.prefix + file for file in each.files} <= needed}
    return [each for each in found if each.name not in kept]


def list_runs(store: BlobStore, *, timeout: float | None = None) -> list[str]:
    """The ids of all runs in a store."""
    runs: dict[str, None] = {}
    for info in store.list("", timeout=timeout):
        run_id, _, rest = info.key.partition("/")
        # (A bucket may hold other things.)
        if is_run_id(run_id) and rest.startswith(("attempts/", "checkpoints/")):
            runs[run_id] = None
    return list(runs)


def _describe(
    store: BlobStore,
    folder: CheckpointFolder,
    folders: list[CheckpointFolder],
    deep: bool,
    timeout: float | None,
) -> Checkpoint:
    marked = MARKER in folder.files
    objects, nbytes = _objects(folder)
    status: Status = "whole"
    reason = ""
    try:
        if marked and not deep and (said := _said(store, folder, timeout)) is not None:
            names = [manifest_name(rank, said.world) for rank in range(said.world)]
            if (said.objects, said.nbytes) == (objects, nbytes) and folder.files.keys() >= set(names):
                return Checkpoint(
                    folder.run_id, folder.name, "whole", "", nbytes + said.elsewhere, True,
                    said.world, said.level, said.kind, said.created, said.missing,
                )  # fmt: skip
        whole = examine(store, folder, folders, timeout=timeout)
        first = whole.manifests[0]
        return Checkpoint(
            folder.run_id, folder.name, "whole", "", whole.nbytes, marked,
            first.world, first.level, first.kind, first.created, first.missing,
        )  # fmt: skip
    except (PartialCheckpoint, NotFoundError) as error:
        status, reason = "partial", str(error)
    except CheckpointError as error:
        status, reason = "newer" if isinstance(error, NewerFormatError) else "damaged", str(error)
    worlds = {
        parsed[1] for name in folder.files if (parsed := parse_manifest_name(name) or parse_object_name(name))
    }
    world = worlds.pop() if len(worlds) == 1 else None
    return Checkpoint(folder.run_id, folder.name, status, reason, nbytes, marked, world)


def _objects(folder: CheckpointFolder) -> tuple[int, int]:
    """How many it has, and their bytes."""
    sizes = [size for name, size in folder.files.items() if parse_object_name(name)]
    return len(sizes), sum(sizes)


def _said(store: BlobStore, folder: CheckpointFolder, timeout: float | None) -> CommitMarker | None:
    """What the marker says; None where it cannot be read, which unmakes nothing: the manifests say more."""
    key = folder.prefix + MARKER
    try:
        return decode_marker(store.get(key, timeout=timeout), key)
    except CheckpointError:
        return None


def _world(folder: CheckpointFolder) -> int:
    worlds = {parsed[1] for name in folder.files if (parsed := parse_manifest_name(name))}
    if not worlds:
        raise PartialCheckpoint("no manifest is there")
    if len(worlds) > 1:
        raise CheckpointError(
            f"manifests of jobs of {' and '.join(map(str, sorted(worlds)))} ranks are mixed"
        )
    return worlds.pop()


def _fetch(store: ReadableStore, keys: list[str], timeout: float | None) -> list[RankManifest]:
    objects = side_by_side(lambda key: store.get(key, timeout=timeout), keys)
    return decode_manifests(zip(keys, objects, strict=True))


def side_by_side(get: Callable[[str], bytes], keys: Sequence[str]) -> list[bytes]:
    """The objects of these keys, in order, got by several threads of which the caller is one.

    No thread pool: at interpreter exit none takes work, and Python 3.12 starts no thread either (python/cpython#104690).
    The caller then gets all objects alone, because the last checkpoint of a job is marked and pruned at exit.

    Raises:
        Exception: what `get` raised, of the first key in order that failed.
    """
    waiting = deque(enumerate(keys))
    got: dict[int, bytes] = {}
    failed: dict[int, Exception] = {}

    def work() -> None:
        while not failed:
            try:
                at, key = waiting.popleft()
            except IndexError:
                return
            try:
                got[at] = get(key)
            except Exception as error:  # noqa: BLE001 - raised below, by the caller
                failed[at] = error

    helpers: list[threading.Thread] = []
    try:
        for number in range(1, min(_FETCHERS, len(keys))):
            helper = threading.Thread(target=work, name=f"spotguard-manifest-{number}", daemon=True)
            try:
                helper.start()
            except RuntimeError:  # at interpreter exit, or the machine is out of threads
                break
            helpers.append(helper)
        work()
    finally:
        waiting.clear()  # Ctrl-C: nothing more is begun
        for helper in helpers:
            helper.join()
    if failed:
        raise failed[min(failed)]
    return [got[at] for at in range(len(keys))]


def _belongs(merged: Coverage, folder: CheckpointFolder) -> None:
    first = merged.manifests[0]
    if (first.run_id, first.checkpoint) != (folder.run_id, folder.name):
        raise CheckpointError(f"its manifests are of {first.run_id} {first.checkpoint}")


def _check_objects(merged: Coverage, folder: CheckpointFolder, folders: list[CheckpointFolder]) -> None:
    """Every object that a manifest names is in the listing, with its size."""
    elsewhere = {str(each.name): each.files for each in folders}
    for manifest in merged.manifests:
        for entry in manifest.objects:
            files = elsewhere.get(entry.checkpoint, {}) if entry.checkpoint else folder.files
            size = files.get(entry.name)
            if size != entry.size:
                place = f"{entry.checkpoint}/{entry.name}" if entry.checkpoint else entry.name
                there = "is not there" if size is None else f"has {size} bytes"
                raise CheckpointError(f"object {place} {there}, its manifest says {entry.size}")


class ReadableStore(Protocol):
    """What a catalog asks of a store."""

    url: str

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        """As `BlobStore.get`."""

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        """As `BlobStore.list`."""
