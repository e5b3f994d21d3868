"""What may be deleted, and in which order: the newest K whole checkpoints stay, one of every N steps, and much else by rule.

Never touched: the last good one; anything newer than it (a save under way); anything at all once a newer attempt has
claimed its number, for it may be reading; an object that a kept checkpoint refers to; what a newer format wrote.

What goes, goes so that a death between any two deletions leaves nothing that looks whole and is not: the marker
of each first, then all manifests, then the objects. Leftovers of saves that never ended go with the rest, once something newer is
whole: a save of a dead attempt that is still uploading somewhere loses nothing by it, because a newer one is there.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ...providers.errors import CheckpointError, NotFoundError, UsageError
from ...providers.stores.base import BlobStore
from .attempts import newest_claim
from .catalog import CheckpointFolder, PartialCheckpoint, WholeCheckpoint, check_size, examine, scan
from .format.codec import NewerFormatError, decode_manifest
from .format.keys import MARKER, CheckpointName, parse_manifest_name, parse_object_name
from .format.manifest import RankManifest, referred

log = logging.getLogger("spotguard")

#: "3", or "3+1000". `agent.config.parsers.keep` has the same, for who may not load this.
_KEEP = re.compile("([1-9][0-9]{0,8})(?:[+]([1-9][0-9]{0,8}))?")


@dataclass(frozen=True, slots=True)
class Keep:
    """How many whole checkpoints of the full level stay."""

    #: The newest. And as many of each lower level that are newer than these.
    newest: int
    #: And of the older ones the first at or after each multiple of so many steps. 0: none of them.
    every: int = 0

    @classmethod
    def of(cls, text: str) -> Keep:
        """From "3", or "3+1000".

        Raises:
            ValueError: it is neither.
        """
        if (found := _KEEP.fullmatch(text)) is None:
            raise ValueError(text)
        return cls(int(found[1]), int(found[2] or 0))


@dataclass(frozen=True, slots=True)
class Pruning:
    """What to keep and what to delete, decided before the first deletion."""

    kept: tuple[CheckpointName, ...]
    #: Oldest first.
    doomed: tuple[CheckpointFolder, ...]
    #: Keys in doomed folders that something kept refers to.
    protected: frozenset[str]
    #: What is newer than all that is kept, has its manifests and is not whole; and why. The newest first.
    damaged: Mapping[CheckpointName, str] = field(default_factory=dict)
    #: The newer attempt that has begun: nothing is deleted. 0: there is none.
    fenced_by: int = 0

    def steps(self) -> Iterator[list[str]]:
        """Keys to delete, group after group; a group only when all before it are gone.

        All markers, then all manifests, then all objects, and not checkpoint by checkpoint: one of the doomed may
        refer to the objects of another.
        """
        for ours in (MARKER.__eq__, parse_manifest_name, parse_object_name):
            keys = [
                folder.prefix + name for folder in self.doomed for name in sorted(folder.files) if ours(name)
            ]
            if keys := [key for key in keys if key not in self.protected]:
                yield keys


def prune(
    store: BlobStore,
    run_id: str,
    *,
    keep: int,
    every: int = 0,
    attempt: int | None = None,
    protect: Iterable[CheckpointName] = (),
    timeout: float | None = None,
) -> list[CheckpointName]:
    """Delete what `plan_pruning` says, and return the names of the checkpoints that are gone.

    Raises:
        UsageError: `keep` is below 1.
    """
    pruning = plan_pruning(
        store, run_id, keep=keep, every=every, attempt=attempt, protect=protect, timeout=timeout
    )
    for keys in pruning.steps():
        store.delete(keys, timeout=timeout)
    return [folder.name for folder in pruning.doomed]


def plan_pruning(
    store: BlobStore,
    run_id: str,
    *,
    keep: int,
    every: int = 0,
    attempt: int | None = None,
    protect: Iterable[CheckpointName] = (),
    timeout: float | None = None,
) -> Pruning:
    """Decide; nothing is deleted.

    Args:
        store: where.
        run_id: whose.
        keep: how many whole checkpoints of the full level stay, the newest.
        every: as in `Keep`.
        attempt: the attempt that prunes. Where a newer one has claimed its number, nothing goes. None: a person asks.
        protect: checkpoints whose objects the caller is about to refer to.
        timeout: of each request.
    """
    if keep < 1:
        raise UsageError(f"keep {keep} would delete the last good checkpoint; use 1 or more")
    folders = scan(store, run_id, timeout=timeout)
    # Claims are read after the listing: who claims later than this lists later, and finds what is kept here.
    if attempt is not None and (newest := _newest(store, run_id, folders, timeout)) > attempt:
        log.info("attempt %d of run %s deletes nothing: attempt %d has begun", attempt, run_id, newest)
        return Pruning((), (), frozenset(), fenced_by=newest)
    damaged: dict[CheckpointName, str] = {}
    kept, light, newer, older = _sort(store, folders, keep, timeout, damaged)
    names = tuple(whole.name for whole in (*light, *kept))
    if not kept and not older:
        return Pruning(names, (), frozenset(), damaged)
    if every:
        kept += _milestones(store, folders, older, every, timeout)
        names = tuple(whole.name for whole in (*light, *kept))
    stay = {whole.name for whole in kept}
    older = [f for f in older if f.name not in stay and not _of_newer_format(store, f, timeout)]
    spared = set(protect)
    doomed = [folder for folder in older if folder.name not in spared]
    manifests = [manifest for whole in (*light, *kept) for manifest in whole.manifests]
    for folder in [*newer, *(folder for folder in older if folder.name in spared)]:
        manifests += _readable(store, folder, timeout)
    return Pruning(names, tuple(reversed(doomed)), frozenset(referred(manifests)), damaged)


def _newest(store: BlobStore, run_id: str, folders: list[CheckpointFolder], timeout: float | None) -> int:
    """The highest attempt that has begun."""
    return max([newest_claim(store, run_id, timeout=timeout), *(folder.name.attempt for folder in folders)])


def _sort(
    store: BlobStore,
    folders: list[CheckpointFolder],
    keep: int,
    timeout: float | None,
    damaged: dict[CheckpointName, str],
) -> tuple[list[WholeCheckpoint], list[WholeCheckpoint], list[CheckpointFolder], list[CheckpointFolder]]:
    """The whole full ones that stay, those of each lower level that stay before them (a run whose optimizer is not saved
    makes no others: no more stay than of full ones, and none of them costs one that lacks less its place), all else that is newer than the newest full one (what is `damaged` of
    that is noted), and the rest that may go."""
    kept: list[WholeCheckpoint] = []
    light: list[WholeCheckpoint] = []
    newer: list[CheckpointFolder] = []
    older: list[CheckpointFolder] = []
    for folder in folders:
        if len(kept) == keep:
            older.append(folder)
            continue
        try:
            whole = examine(store, folder, folders, timeout=timeout)
        except NewerFormatError:
            continue  # not ours to judge: it stays
        except CheckpointError as error:
            (older if kept else newer).append(folder)
            if not kept and not isinstance(error, PartialCheckpoint):
                damaged[folder.name] = str(error)
            continue
        if whole.level == "full":
            kept.append(whole)
        elif kept or sum(each.level == whole.level for each in light) == keep:
            older.append(folder)
        else:
            light.append(whole)
    return kept, light, newer, older


def _milestones(
    store: BlobStore,
    folders: list[CheckpointFolder],
    older: list[CheckpointFolder],
    every: int,
    timeout: float | None,
) -> list[WholeCheckpoint]:
    """Of the older ones the first whole full one at or after each multiple, newest first. Who went back left a branch
    behind: what lies on it beyond that step is no milestone of the way that was gone."""
    by_multiple: dict[int, list[CheckpointFolder]] = {}
    for folder in older:
        name = folder.name
        left_behind = any(
            each.name.attempt > name.attempt and each.name.step <= name.step for each in folders
        )
        if name.step >= every and not left_behind:
            by_multiple.setdefault(name.step // every, []).append(folder)
    found = []
    for candidates in by_multiple.values():
        for folder in sorted(candidates, key=lambda each: each.name.step):
            try:
                whole = examine(store, folder, folders, timeout=timeout)
            except CheckpointError:
                continue
            if whole.level == "full":
                found.append(whole)
                break
    return sorted(found, key=lambda whole: whole.name, reverse=True)


def _of_newer_format(store: BlobStore, folder: CheckpointFolder, timeout: float | None) -> bool:
    """Whether one manifest says so; one is enough, a save has one writer's format."""
    name = next((name for name in sorted(folder.files) if parse_manifest_name(name)), None)
    if name is None:
        return False
    try:
        _manifest(store, folder, name, timeout)
    except NewerFormatError:
        return True
    except (CheckpointError, NotFoundError):
        return False  # damaged or gone already: it may go
    return False


def _manifest(store: BlobStore, folder: CheckpointFolder, name: str, timeout: float | None) -> RankManifest:
    if (parsed := parse_manifest_name(name)) is not None:
        check_size(folder, name, parsed[1])
    return decode_manifest(store.get(folder.prefix + name, timeout=timeout), folder.prefix + name)


def _readable(store: BlobStore, folder: CheckpointFolder, timeout: float | None) -> Iterator[RankManifest]:
    """The manifests that a save under way has put so far: what they refer to must stay."""
    for name in folder.files:
        if parse_manifest_name(name):
            try:
                yield _manifest(store, folder, name, timeout)
            except (CheckpointError, NotFoundError):
                continue  # unreadable, so it will never restore, so it needs nothing
