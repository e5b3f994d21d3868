"""Catalog of a run: its checkpoints, and which of them are whole. One listing, then manifests by name.

The marker is a shortcut for listings meant for people. A restore never trusts it: a restore needs the manifests
anyway, and they say more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ...providers.errors import CheckpointError, NotFoundError
from ...providers.stores.base import BlobStore, ObjectInfo
from ..ipc.threads import side_by_side
from .format.codec import UnsupportedFormatError, decode_manifests
from .format.coverage import Coverage, MergedTensor, coverage
from .format.keys import (
    INDEX,
    MARKER,
    SAVING,
    CheckpointName,
    checkpoint_prefix,
    checkpoints_prefix,
    manifest_name,
    parse_manifest_name,
)
from .format.manifest import Level, RankManifest, left_out_of, most_bytes, referred, suspicion
from .format.safetensors_header import check_headers
from .format.values.state_check import StateCheck
from .index import decode_index

log = logging.getLogger("spotguard")


class PartialCheckpoint(CheckpointError):
    """Error for a checkpoint that lacks a rank's manifest: its save is under way, or never ended."""


class CheckpointGone(PartialCheckpoint):
    """Error for a checkpoint that the listing had and the store has no longer, perhaps because it was pruned."""


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """One checkpoint as a listing shows it."""

    run_id: str
    name: CheckpointName
    #: Size of each file by its name inside the directory.
    files: Mapping[str, int]
    #: When its emergency save was announced, in Unix seconds by the store's clock; 0 if it was not.
    announced: float = 0.0
    #: When its last manifest or its marker was put, by the same clock; 0 if it has neither.
    put: float = 0.0

    @property
    def prefix(self) -> str:
        """Prefix of the keys of its objects."""
        return checkpoint_prefix(self.run_id, self.name)

    @property
    def complete(self) -> bool:
        """Whether the manifests of all ranks are listed."""
        manifests = {parsed for name in self.files if (parsed := parse_manifest_name(name))}
        worlds = {world for _, world in manifests}
        return len(worlds) == 1 and len(manifests) == worlds.pop()


@dataclass(frozen=True, slots=True)
class WholeCheckpoint:
    """Checkpoint whose every byte is known by place and CRC, and whose objects the store lists."""

    run_id: str
    name: CheckpointName
    manifests: tuple[RankManifest, ...]
    tensors: Mapping[str, MergedTensor]
    #: For each rank whose extras are missing, the rank whose extras replace them (`ranking.stand_ins`).
    stand_ins: Mapping[int, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Return the bytes of its objects, and of those in earlier checkpoints' directories that it refers to."""
        return self.written + sum(referred(self.manifests).values())

    @property
    def written(self) -> int:
        """Return the bytes of its own objects."""
        return sum(manifest.nbytes for manifest in self.manifests)

    @property
    def level(self) -> Level:
        return self.manifests[0].level

    @property
    def missing(self) -> tuple[int, ...]:
        """Return the ranks whose extras it lacks."""
        return self.manifests[0].missing

    @property
    def suspect(self) -> str:
        """Return why some rank's losses make it suspect; "" if none do."""
        return suspicion(self.manifests)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return the path and the type of each value that no save could hold."""
        return left_out_of(self.manifests)

    def prove(self, *, headers: bool = True) -> None:
        """Prove, beyond `examine`, that a restore finds nothing wrong with it before it reads the tensors' bytes.

        A restore makes the same checks for the ranks and the objects that it reads.

        Args:
            headers: check the headers of objects too, as the manifests give them. Of 128 ranks they take a second of processor
                time, and the ranks' states a twentieth.

        Raises:
            CheckpointError: an object's header is not that of its tensors, or a rank's state cannot be read.
        """
        state = StateCheck(self.manifests)
        for manifest in self.manifests:
            state.check(manifest)
            if headers:
                check_headers(manifest)


def scan(store: ReadableStore, run_id: str, *, timeout: float | None = None) -> list[CheckpointFolder]:
    """Return all checkpoints of a run, newest first, from one listing."""
    return folders_of(run_id, store.list(checkpoints_prefix(run_id), timeout=timeout))


def folders_of(run_id: str, listing: Iterable[ObjectInfo]) -> list[CheckpointFolder]:
    """Return all checkpoints of a run, newest first.

    Args:
        run_id: the run.
        listing: what the store lists below the run's checkpoints.
    """
    prefix = checkpoints_prefix(run_id)
    sizes: dict[CheckpointName, dict[str, int]] = {}
    announced: dict[CheckpointName, float] = {}
    put: dict[CheckpointName, float] = {}
    for info in listing:
        folder, _, rest = info.key[len(prefix) :].partition("/")
        if rest and (name := CheckpointName.parse(folder)) is not None:
            sizes.setdefault(name, {})[rest] = info.size
            if rest == SAVING:
                announced[name] = info.modified
            elif rest == MARKER or parse_manifest_name(rest):
                put[name] = max(info.modified, put.get(name, 0.0))
    return [
        CheckpointFolder(run_id, name, sizes[name], announced.get(name, 0.0), put.get(name, 0.0))
        for name in sorted(sizes, reverse=True)
    ]


def examine(
    store: ReadableStore,
    folder: CheckpointFolder,
    folders: list[CheckpointFolder],
    *,
    indexed: bool = False,
    timeout: float | None = None,
) -> WholeCheckpoint:
    """Read a checkpoint's manifests and compare them with the listing.

    Args:
        store: the store that holds it.
        folder: the checkpoint.
        folders: all checkpoints of its run, as it may refer to their objects.
        indexed: whether to read the index in place of the manifests if there is one.
        timeout: seconds for each request.

    Raises:
        PartialCheckpoint: a rank's manifest is missing; `CheckpointGone` if the listing had it.
        CheckpointError: the checkpoint is damaged; the message says where.
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
        manifests = _indexed(store, folder, names, timeout) if indexed else None
        if manifests is None:
            manifests = _fetch(store, [folder.prefix + name for name in names], timeout)
    except NotFoundError as error:
        raise CheckpointGone(f"it disappeared while spotguard read it ({error})") from error
    merged = coverage(manifests)
    _belongs(merged, folder)
    _check_objects(merged, folder, folders)
    return WholeCheckpoint(folder.run_id, folder.name, merged.manifests, merged.tensors)


def check_index(
    store: ReadableStore, folder: CheckpointFolder, whole: WholeCheckpoint, *, timeout: float | None = None
) -> None:
    """Check that the index, which a restore reads in place of the manifests, says the same as they do.

    Raises:
        CheckpointError: it says something else. (A damaged index is none: a restore then reads the manifests.)
    """
    names = [manifest_name(manifest.rank, manifest.world) for manifest in whole.manifests]
    indexed = _indexed(store, folder, names, timeout)
    if indexed is not None and tuple(indexed) != whole.manifests:
        raise CheckpointError(f"{folder.prefix}{INDEX} differs from the manifests of its checkpoint")


def check_size(folder: CheckpointFolder, name: str, world: int) -> None:
    """Raise CheckpointError if a manifest is too large to be one, before it is read into memory."""
    if (size := folder.files[name]) > (most := most_bytes(world)):
        raise CheckpointError(f"{name} has {size} bytes, but a manifest of {world} ranks has at most {most}")


def whole_checkpoints(
    store: ReadableStore,
    run_id: str,
    *,
    step: int | None = None,
    levels: tuple[Level, ...] = ("full",),
    indexed: bool = False,
    skipped: Callable[[CheckpointName, CheckpointError], None] | None = None,
    waited: Callable[[list[CheckpointFolder]], bool] = lambda folders: False,
    timeout: float | None = None,
) -> Iterator[WholeCheckpoint]:
    """Yield complete checkpoints, newest first. A restore falls back along this order.

    Each checkpoint is examined only when the caller asks for it.

    Args:
        store: the store that holds them.
        run_id: the run.
        step: only checkpoints of this step.
        levels: the levels that may be restored.
        indexed: as in `examine`.
        skipped: called for each checkpoint that is not whole, with the reason. The default is `passed_over`.
        waited: called with the listing. It returns whether it has waited for a save in flight, so that the listing is old.
        timeout: seconds for each request.

    Raises:
        UnsupportedFormatError: another version of spotguard wrote the next checkpoint. It may be good, and falling back to
            an older one without being asked would throw its steps away.
    """
    folders = scan(store, run_id, timeout=timeout)
    while waited(folders):
        folders = scan(store, run_id, timeout=timeout)
    for folder in folders:
        if step is not None and folder.name.step != step:
            continue
        try:
            whole = examine(store, folder, folders, indexed=indexed, timeout=timeout)
        except UnsupportedFormatError:
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
    """Log that a checkpoint is not whole, if the reason is damage."""
    if not isinstance(error, PartialCheckpoint):
        log.warning("skipping checkpoint %s of run %s: %s", name, run_id, error)


def find_whole(
    store: BlobStore,
    run_id: str,
    *,
    step: int | None = None,
    levels: tuple[Level, ...] = ("full",),
) -> WholeCheckpoint | None:
    """Return the newest complete checkpoint: highest (attempt, step, save)."""
    return next(whole_checkpoints(store, run_id, step=step, levels=levels), None)


def _world(folder: CheckpointFolder) -> int:
    worlds = {parsed[1] for name in folder.files if (parsed := parse_manifest_name(name))}
    if not worlds:
        raise PartialCheckpoint("it has no manifest")
    if len(worlds) > 1:
        raise CheckpointError(f"it mixes manifests of jobs of {' and '.join(map(str, sorted(worlds)))} ranks")
    return worlds.pop()


def _fetch(store: ReadableStore, keys: list[str], timeout: float | None) -> list[RankManifest]:
    objects = side_by_side(lambda key: store.get(key, timeout=timeout), keys)
    return decode_manifests(zip(keys, objects, strict=True))


def _indexed(
    store: ReadableStore, folder: CheckpointFolder, names: list[str], timeout: float | None
) -> list[RankManifest] | None:
    """Return the manifests from the checkpoint's index, or None if the manifests themselves must be read."""
    sizes = {rank: folder.files[name] for rank, name in enumerate(names)}
    # The index has each text of the manifests once, so it is never much larger than they are.
    if not 0 < folder.files.get(INDEX, 0) <= 2 * sum(sizes.values()):
        return None
    key = folder.prefix + INDEX
    try:
        return decode_index(store.get(key, timeout=timeout), key, sizes)
    except (CheckpointError, NotFoundError) as error:
        log.debug("reading the manifests one by one: %s", error)
        return None


def _belongs(merged: Coverage, folder: CheckpointFolder) -> None:
    first = merged.manifests[0]
    if (first.run_id, first.checkpoint) != (folder.run_id, folder.name):
        raise CheckpointError(f"its manifests belong to run {first.run_id}, checkpoint {first.checkpoint}")


def _check_objects(merged: Coverage, folder: CheckpointFolder, folders: list[CheckpointFolder]) -> None:
    """Check that every object that a manifest names is in the listing, with its size."""
    elsewhere: dict[str, Mapping[str, int]] = {}
    if any(entry.checkpoint for manifest in merged.manifests for entry in manifest.objects):
        elsewhere = {str(each.name): each.files for each in folders}
    wrong: dict[str, tuple[str, str, int]] = {}
    for manifest in merged.manifests:
        for index, entry in enumerate(manifest.objects):
            files = elsewhere.get(entry.checkpoint, {}) if entry.checkpoint else folder.files
            size = files.get(entry.name)
            if size != entry.size:
                place = f"{entry.checkpoint}/{entry.name}" if entry.checkpoint else entry.name
                there = "is missing" if size is None else f"has {size} bytes"
                wrong[manifest.object_key(index)] = place, there, entry.size
    if wrong:
        place, there, most = next(iter(wrong.values()))
        raise CheckpointError(f"object {place} {there}, but its manifest records {most} bytes").about(wrong)


class ReadableStore(Protocol):
    """Operations of a store that a catalog needs."""

    url: str

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        """As `BlobStore.get`."""

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        """As `BlobStore.list`."""
