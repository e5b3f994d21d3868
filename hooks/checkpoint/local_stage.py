"""Stage: a directory on a disk of this machine, where a background checkpoint goes first.

A staged checkpoint is an ordinary checkpoint, committed like any other, so a restart on the same machine restores
from it. For every other purpose it does not count as committed, because the machine may be gone.

The directory may also belong to another history: it was used with another store, or with one that was emptied since.
So the stage keeps a copy of each attempt's record. A staged checkpoint is trusted only if the store holds the very
same record, byte for byte.
"""

from __future__ import annotations

import heapq
import logging
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...providers.errors import NotFoundError, StoreError, UsageError
from ...providers.stores.base import BlobStore
from ...providers.stores.file import FileStore
from .catalog import CheckpointFolder, WholeCheckpoint, scan, whole_checkpoints
from .format.codec import UnsupportedFormatError
from .format.keys import CheckpointName, attempt_key
from .retention import deletions, plan_pruning
from .store_probe import probe

log = logging.getLogger("spotguard")

#: File systems in memory: their files count as host memory, and end with a reboot.
MEMORY = ("tmpfs", "ramfs")
_MOUNTS = Path("/proc/self/mounts")
#: Escape of space, tab, newline and backslash in the name of a mount (proc_pid_mounts(5)).
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2})")


@dataclass(frozen=True, slots=True)
class StagedCheckpoint(WholeCheckpoint):
    """Whole checkpoint on this machine's disk."""


class Stage:
    """Staging directory of one run. Any thread may use it.

    Args:
        folder: absolute path; it is created.
        run_id: the run.
        nbytes: expected bytes of a checkpoint, as far as known.

    Raises:
        UsageError: nothing can be written there.
    """

    def __init__(self, folder: Path, run_id: str, nbytes: int = 0) -> None:
        self.folder = folder
        self.files = usable(folder, run_id)
        self.run_id = run_id
        #: Reason why staging is switched off; "" while it is on.
        self.off = ""
        self._look(nbytes)

    def _look(self, nbytes: int) -> None:
        """Warn if the directory is in memory, or has too little room."""
        if (kind := file_system(self.folder)) in MEMORY:
            log.warning(
                "--stage %s is in memory (%s), so each checkpoint there takes host memory; pass a "
                "directory on a disk [SG506]",
                self.folder,
                kind,
            )
        if (room := self.room()) < 2 * nbytes:
            log.warning(
                "--stage %s has room for %d MiB, but two checkpoints take %d MiB: when it is full, "
                "spotguard copies a background checkpoint to host memory instead [SG506]",
                self.folder,
                room >> 20,
                2 * nbytes >> 20,
            )

    def room(self) -> int:
        """Return the bytes that may still be written there."""
        stats = os.statvfs(self.folder)
        return stats.f_bavail * stats.f_frsize

    def begin(self, store: BlobStore, attempt: int) -> None:
        """Prepare the directory for attempt `attempt`, which was claimed in `store`.

        From here on, the checkpoints that this attempt stages can be distinguished from all others.
        """
        key = attempt_key(self.run_id, attempt)
        record = store.get(key)
        try:
            # A store gives each number once. So a checkpoint under this number was staged beside another store. The
            # same holds for a higher number that this store does not know. If it stayed, it would pass for newer,
            # and this attempt's checkpoints would be pruned.
            folders = [each for each in scan(self.files, self.run_id) if each.name.attempt >= attempt]
            higher = {each.name.attempt for each in folders} - {attempt}
            known = {number for number in higher if self._same_record(store, number)}
            self._remove(each for each in folders if each.name.attempt not in known)
            self.files.put(key, memoryview(record))
        except StoreError as error:
            self.switch_off(str(error))

    def switch_off(self, why: str) -> None:
        """Switch staging off from here on, and warn."""
        self.off = why
        log.warning(
            "spotguard stages nothing in %s any more, and copies background checkpoints to host memory: %s",
            self.folder,
            why,
        )

    # --- reading ---

    def wholes(self, store: BlobStore, *, step: int | None = None) -> Iterator[StagedCheckpoint]:
        """Yield the trusted complete checkpoints, newest first; each is examined when it is asked for."""
        candidates = whole_checkpoints(self.files, self.run_id, step=step)
        trusted: dict[int, bool] = {}
        while True:
            try:
                whole = next(candidates, None)
            except (StoreError, UnsupportedFormatError) as error:
                # Only the store is guaranteed. An unreadable stage costs a restart its time, and some steps.
                log.warning(
                    "spotguard cannot read the staged checkpoints in %s, and uses those in the store: %s",
                    self.folder,
                    error,
                )
                return
            if whole is None:
                return
            attempt = whole.name.attempt
            if attempt not in trusted:
                trusted[attempt] = self._same_record(store, attempt)
            if trusted[attempt]:
                yield StagedCheckpoint(whole.run_id, whole.name, whole.manifests, whole.tensors)

    def _same_record(self, store: BlobStore, attempt: int) -> bool:
        key = attempt_key(self.run_id, attempt)
        try:
            ours = self.files.get(key)
        except StoreError:
            return False  # without a record it may belong to another history
        try:
            return store.get(key) == ours
        except NotFoundError:
            return False

    # --- deleting ---

    def prune(self, name: CheckpointName, nbytes: int) -> bool:
        """Delete what `name`, which is now in the store, makes superfluous: the older checkpoints.

        If there is then no room for another checkpoint of `nbytes`, delete `name` too.

        Returns:
            Whether `name` was deleted.
        """
        for keys in plan_pruning(self.files, self.run_id, keep=1).steps():
            self.files.delete(keys)
        if self.room() >= nbytes:
            return False
        self._remove(each for each in scan(self.files, self.run_id) if each.name <= name)
        return True

    def discard(self, name: CheckpointName) -> None:
        """Delete the remains of a checkpoint whose save failed."""
        self._remove(each for each in scan(self.files, self.run_id) if each.name == name)

    def _remove(self, folders: Iterable[CheckpointFolder]) -> None:
        departing = tuple(folders)
        for keys in deletions(departing):
            self.files.delete(keys)


def newest_first(
    staged: Iterator[StagedCheckpoint], stored: Iterator[WholeCheckpoint]
) -> Iterator[WholeCheckpoint]:
    """Merge both by age. If a checkpoint is in both places, the staged one comes first: a disk is nearer."""
    return heapq.merge(staged, stored, key=lambda whole: whole.name, reverse=True)


def usable(folder: Path, run_id: str) -> FileStore:
    """Create the directory, try it, and return it as a store.

    Raises:
        UsageError: nothing can be written there.
    """
    files = FileStore(folder)
    try:
        probe(files, run_id, claims=False)
    except StoreError as error:
        raise UsageError(f"--stage {folder} (SPOTGUARD_STAGE) cannot be used: {error} [SG506]") from error
    return files


def file_system(folder: Path, mounts: Path = _MOUNTS) -> str:
    """Return the type of the file system that holds `folder`; "" if unknown."""
    return mounted(folder, mounts)[1]


def mounted(folder: Path, mounts: Path = _MOUNTS) -> tuple[str, str]:
    """Return the mount point of the file system that holds `folder`, and its type; both "" if unknown."""
    try:
        lines = [line.split(b" ") for line in mounts.read_bytes().split(b"\n")]  # a name need not be UTF-8
    except OSError:
        return "", ""
    real = os.fsencode(os.path.realpath(folder))
    # The later of two mounts on one place hides the first.
    listed = [(_ESCAPED.sub(_unescaped, words[1]), words[2]) for words in lines if len(words) > 2]
    over = [(len(place), at, place, kind) for at, (place, kind) in enumerate(listed) if _below(real, place)]
    _, _, place, kind = max(over, default=(0, 0, b"", b""))
    return os.fsdecode(place), os.fsdecode(kind)


def _unescaped(octal: re.Match[bytes]) -> bytes:
    return bytes([int(octal[1], 8)])


def _below(path: bytes, place: bytes) -> bool:
    return path == place or path.startswith(place.rstrip(b"/") + b"/")
