"""Retention: which checkpoints may be deleted, and in which order.

The newest K complete checkpoints stay, and one of every N steps. One of a step does not count beside that of a later attempt: a finished
run that is started again saves its last step each time, and would else push all others out. Suspect ones (a rank's losses were not finite) do not count
among them; the newest K of these stay besides, until one that is not suspect is newer. Pruning also never touches:
- the last good checkpoint;
- anything newer than the last good one, since it may be a save under way;
- anything at all once a newer attempt has claimed its number, since that attempt may be reading;
- an object that a kept checkpoint refers to;
- an attempt with a checkpoint in another format: its checkpoints may refer to any object of that attempt.

Pruning deletes the marker of each checkpoint first, then all manifests, then the objects. So a death between any
two deletions leaves nothing that seems whole and is not.

Leftovers of saves that never ended are deleted with the rest, once a newer checkpoint is complete. A save of a dead
attempt may still be uploading somewhere. It loses nothing, because a newer checkpoint exists.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

from ...providers.errors import CheckpointError, NotFoundError, UsageError
from ...providers.stores.base import BlobStore
from .attempts import claims
from .catalog import CheckpointFolder, PartialCheckpoint, check_size, examine, scan
from .format.codec import UnsupportedFormatError, decode_manifest
from .format.keys import INDEX, MARKER, SAVING, CheckpointName, parse_manifest_name, parse_object_name
from .format.manifest import Level, RankManifest, referred

log = logging.getLogger("spotguard")

#: Two dates of a store that differ by no more may be of one moment: S3 tells whole seconds.
_SAME_SECOND = 1.0

#: "3", or "3+1000". `agent.config.parsers.keep` holds the same pattern, because the agent may not load this module.
_KEEP = re.compile("([1-9][0-9]{0,8})(?:[+]([1-9][0-9]{0,8}))?")


@dataclass(frozen=True, slots=True)
class Keep:
    """Number of complete checkpoints of the full level that stay."""

    #: How many of the newest stay. As many of each lower level stay, if they are newer than these.
    newest: int
    #: Step interval: of the older checkpoints, the first at or after each multiple of this number of steps stays,
    #: too. 0: none of them.
    every: int = 0

    @classmethod
    def of(cls, text: str) -> Keep:
        """Parse "3", or "3+1000".

        Raises:
            ValueError: the text has neither form.
        """
        if (match := _KEEP.fullmatch(text)) is None:
            raise ValueError(text)
        return cls(int(match[1]), int(match[2] or 0))


@dataclass(frozen=True, slots=True)
class Pruning:
    """Decision about which checkpoints to keep and which to delete, made before the first deletion."""

    kept: tuple[CheckpointName, ...]
    #: The newest full checkpoint that stays and is not suspect (the newest of all, if the run has none): merged from its manifests, held
    #: against the listing, and its state can be read. A marker or an index proves nothing here. If it is None, nothing is deleted.
    checked: CheckpointName | None
    #: Checkpoints to delete, the oldest first.
    departing: tuple[CheckpointFolder, ...]
    #: Keys in doomed directories that a kept checkpoint refers to.
    protected: frozenset[str]
    #: The damage by name for each damaged checkpoint: newer than all that are kept, its manifests there, and not whole.
    #: The newest comes first.
    damaged: Mapping[CheckpointName, CheckpointError] = field(default_factory=dict)
    #: The newer attempt that has begun, so that nothing is deleted; 0 for none.
    fenced_by: int = 0
    #: The newest checkpoint that an older attempt has committed since this one began; None if none has.
    beside: CheckpointName | None = None

    def steps(self) -> Iterator[list[str]]:
        """Yield groups of keys to delete, as `deletions` does."""
        return deletions(self.departing, self.protected)


def deletions(
    folders: Iterable[CheckpointFolder], protected: Container[str] = frozenset()
) -> Iterator[list[str]]:
    """Yield groups of keys to delete. Delete a group only when all groups before it are gone.

    The groups are all markers, indexes and announcements, then all manifests, then all objects. The order is not checkpoint by
    checkpoint, because one doomed checkpoint may refer to the objects of another.

    Args:
        folders: the checkpoints to delete.
        protected: keys that stay.
    """
    listed = [*folders]
    for ours in ((MARKER, INDEX, SAVING).__contains__, parse_manifest_name, parse_object_name):
        keys = [folder.prefix + name for folder in listed for name in sorted(folder.files) if ours(name)]
        if keys := [key for key in keys if key not in protected]:
            yield keys


@dataclass(frozen=True, slots=True)
class CheckedCheckpoint:
    """A complete checkpoint: it was merged from its manifests, held against the listing, and its state can be read."""

    name: CheckpointName
    level: Level
    #: Whether some rank's losses make it suspect.
    suspect: bool
    #: Digest of its directory's names and sizes.
    listing: bytes
    #: Sizes of the objects in other directories that it refers to, by key.
    refers: Mapping[str, int]


class CheckedCheckpoints:
    """The checkpoints that this process has merged, each once, and held against every listing since.

    A run that keeps a hundred milestones of 1,024 ranks would else read 100,000 manifests at each commit.
    """

    def __init__(self) -> None:
        self._known: dict[CheckpointName, CheckedCheckpoint] = {}

    def check(
        self,
        store: BlobStore,
        folders: list[CheckpointFolder],
        folder: CheckpointFolder,
    ) -> CheckedCheckpoint:
        """Check one checkpoint.

        Raises:
            CheckpointError: as in `examine` and `WholeCheckpoint.prove`.
        """
        listing = sha256(repr(sorted(folder.files.items())).encode()).digest()
        known = self._known.get(folder.name)
        if known is None or known.listing != listing or not _are_listed(known.refers, folders):
            whole = examine(store, folder, folders)
            whole.prove(headers=False)  # in the training process, after each commit
            known = CheckedCheckpoint(
                whole.name, whole.level, bool(whole.suspect), listing, referred(whole.manifests)
            )
            self._known[folder.name] = known
        return known

    def forget(self, listed: Iterable[CheckpointFolder]) -> None:
        """Forget the checkpoints that are not listed any more."""
        names = {folder.name for folder in listed}
        self._known = {name: known for name, known in self._known.items() if name in names}


def _are_listed(objects: Mapping[str, int], folders: list[CheckpointFolder]) -> bool:
    if not objects:
        return True
    sizes = {folder.prefix: folder.files for folder in folders}
    for key, size in objects.items():
        # A key ends with the object's name, which has one slash.
        prefix, name = "/".join(key.split("/")[:-2]) + "/", "/".join(key.split("/")[-2:])
        if sizes.get(prefix, {}).get(name) != size:
            return False
    return True


def plan_pruning(
    store: BlobStore,
    run_id: str,
    *,
    keep: int,
    every: int = 0,
    attempt: int | None = None,
    known: CheckedCheckpoints | None = None,
) -> Pruning:
    """Decide what to prune; delete nothing.

    Args:
        store: the store.
        run_id: the run.
        keep: how many complete checkpoints of the full level stay, the newest.
        every: as in `Keep`.
        attempt: the attempt that prunes. If a newer attempt has claimed its number, nothing is deleted. None: a
            person asks.
        known: the checkpoints that earlier calls have merged.

    Raises:
        UsageError: `keep` is below 1.
    """
    if keep < 1:
        raise UsageError(f"keep {keep} would delete the last good checkpoint; use 1 or more")
    folders = scan(store, run_id)
    # Read the claims after the listing: an attempt that claims later also lists later, and finds the kept
    # checkpoints.
    claimed = claims(store, run_id)
    newest = max([0, *claimed, *(folder.name.attempt for folder in folders)])
    if attempt is not None and newest > attempt:
        log.info("attempt %d of run %s deletes nothing: attempt %d has begun", attempt, run_id, newest)
        return Pruning((), None, (), frozenset(), fenced_by=newest)
    beside = None if attempt is None else _beside(folders, attempt, claimed.get(attempt, 0.0))
    damaged: dict[CheckpointName, CheckpointError] = {}
    known = CheckedCheckpoints() if known is None else known
    known.forget(folders)
    check = partial(known.check, store, folders)

    unsupported: set[int] = set()
    kept, light, newer, older = _sort(folders, keep, check, damaged, unsupported)
    names = tuple(whole.name for whole in (*light, *kept))
    checked = next((whole.name for whole in (*kept, *light)), None)
    if checked is None or not older:
        return Pruning(names, checked, (), frozenset(), damaged, beside=beside)
    if every:
        kept += _milestones(folders, older, every, check)
        names = tuple(whole.name for whole in (*light, *kept))
    stay = {whole.name for whole in kept}
    older = [folder for folder in older if folder.name not in stay]
    unsupported |= {f.name.attempt for f in (*newer, *older) if _is_unsupported(store, f)}
    older = [folder for folder in older if folder.name.attempt not in unsupported]
    protected = {key for whole in (*light, *kept) for key in whole.refers}
    for folder in newer:
        protected |= referred(_readable(store, folder)).keys()
    older = [folder for folder in older if any(deletions([folder], protected))]
    return Pruning(names, checked, tuple(reversed(older)), frozenset(protected), damaged, beside=beside)


def _beside(folders: list[CheckpointFolder], attempt: int, began: float) -> CheckpointName | None:
    """Return the newest checkpoint of an older attempt that was committed since this one began, 0 if the store does not say.

    One that was announced before is that of a machine which was preempted, and which this attempt may have overtaken.
    """
    since = began + _SAME_SECOND
    if not began:
        return None
    return next(
        (
            folder.name
            for folder in folders
            if folder.name.attempt < attempt and folder.put > since and not 0 < folder.announced <= since
        ),
        None,
    )


def _sort(
    folders: list[CheckpointFolder],
    keep: int,
    check: Callable[[CheckpointFolder], CheckedCheckpoint],
    damaged: dict[CheckpointName, CheckpointError],
    unsupported: set[int],
) -> tuple[list[CheckedCheckpoint], list[CheckedCheckpoint], list[CheckpointFolder], list[CheckpointFolder]]:
    """Sort the directories into four lists: kept, light, newer, older.

    - kept: the whole full checkpoints that stay, and are not suspect.
    - light: those of each lower level, and the suspect ones, that stay and are newer than the newest of `kept`.
    - newer: those newer than every full one that are not whole; `damaged` gets the error of each damaged one.
    - older: the rest, which may be deleted.

    `unsupported` gets the attempt of each checkpoint whose format is not this version's.

    A run whose optimizer is not saved makes no full checkpoints, and one whose losses are not finite makes suspect ones.
    So no more of each kind stay than of those in `kept`, and none of them takes the place of a better one.
    """
    kept: list[CheckedCheckpoint] = []
    light: list[CheckedCheckpoint] = []
    newer: list[CheckpointFolder] = []
    older: list[CheckpointFolder] = []
    for folder in folders:
        if len(kept) == keep:
            older.append(folder)
            continue
        try:
            whole = check(folder)
        except UnsupportedFormatError:
            unsupported.add(folder.name.attempt)  # this version cannot judge it: it stays
            continue
        except CheckpointError as error:
            passed = kept or any(each.level == "full" for each in light)
            (older if passed else newer).append(folder)
            if not passed and not isinstance(error, PartialCheckpoint):
                damaged[folder.name] = error
            continue
        kind = whole.level, whole.suspect
        if kind == ("full", False):
            if any(_follows(each.name, whole.name) for each in kept):
                older.append(folder)
            else:
                kept.append(whole)
        elif kept or sum((each.level, each.suspect) == kind for each in light) == keep:
            older.append(folder)
        else:
            light.append(whole)
    return kept, light, newer, older


def _follows(later: CheckpointName, name: CheckpointName) -> bool:
    """Return whether a later attempt has made a checkpoint of the same step."""
    return later.step == name.step and later.attempt > name.attempt


def _milestones(
    folders: list[CheckpointFolder],
    older: list[CheckpointFolder],
    every: int,
    check: Callable[[CheckpointFolder], CheckedCheckpoint],
) -> list[CheckedCheckpoint]:
    """Return the older checkpoints that `every` keeps, newest first.

    These are the first whole full checkpoints at or after each multiple of `every`. A run that goes back to an
    earlier step leaves a branch behind. Checkpoints of that branch beyond that step are no milestones.
    """
    by_multiple: dict[int, list[CheckpointFolder]] = {}
    resumed = _resumed_at(folders)
    for folder in older:
        name = folder.name
        left_behind = name.step >= resumed[name.attempt]
        if name.step >= every and not left_behind:
            by_multiple.setdefault(name.step // every, []).append(folder)
    milestones = []
    for candidates in by_multiple.values():
        for folder in sorted(candidates, key=lambda each: each.name.step):
            try:
                whole = check(folder)
            except CheckpointError:
                continue
            if whole.level == "full" and not whole.suspect:
                milestones.append(whole)
                break
    return sorted(milestones, key=lambda whole: whole.name, reverse=True)


def _resumed_at(folders: list[CheckpointFolder]) -> dict[int, float]:
    """Return for each attempt the earliest step of all newer attempts: training went back to a step before it."""
    first: dict[int, float] = {}
    for folder in folders:
        name = folder.name
        first[name.attempt] = min(name.step, first.get(name.attempt, math.inf))
    resumed, earliest = {}, math.inf
    for attempt in sorted(first, reverse=True):
        resumed[attempt] = earliest
        earliest = min(earliest, first[attempt])
    return resumed


def _is_unsupported(store: BlobStore, folder: CheckpointFolder) -> bool:
    """Whether one manifest has another format. One is enough, because a save has one writer's format."""
    name = next((name for name in sorted(folder.files) if parse_manifest_name(name)), None)
    if name is None:
        return False
    try:
        _manifest(store, folder, name)
    except UnsupportedFormatError:
        return True
    except (CheckpointError, NotFoundError):
        return False  # damaged or gone already: it may go
    return False


def _manifest(store: BlobStore, folder: CheckpointFolder, name: str) -> RankManifest:
    if (parsed := parse_manifest_name(name)) is not None:
        check_size(folder, name, parsed[1])
    return decode_manifest(store.get(folder.prefix + name), folder.prefix + name)


def _readable(store: BlobStore, folder: CheckpointFolder) -> Iterator[RankManifest]:
    """Yield the manifests that a save under way has put so far: the objects that they refer to must stay."""
    for name in folder.files:
        if parse_manifest_name(name):
            try:
                yield _manifest(store, folder, name)
            except (CheckpointError, NotFoundError):
                continue  # unreadable, so no restore can use it, and it needs no objects
