"""A folder on a disk of this machine, where a background checkpoint goes first: what of it may be believed.

What lies there is an ordinary checkpoint, committed like any other, so a restart on the same machine restores from it. It
counts as committed for nobody else, for the machine may be gone. And the folder may speak of another history: it was
used with another store, or with one that was emptied since. So a staged checkpoint is believed only where the store holds
the very record of its attempt, byte for byte, that was laid down beside it.
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
from .format.codec import NewerFormatError
from .format.keys import CheckpointName, attempt_key
from .retention import Pruning, plan_pruning
from .store_probe import probe

log = logging.getLogger("spotguard")

#: File systems that are memory: they count as the host's, and end with the machine's restart.
MEMORY = ("tmpfs", "ramfs")
_MOUNTS = Path("/proc/self/mounts")
#: Space, tab, newline and backslash in a mount's name (proc_pid_mounts(5)).
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2})")


@dataclass(frozen=True, slots=True)
class StagedCheckpoint(WholeCheckpoint):
    """A whole checkpoint that lies on this machine's disk."""


class Stage:
    """The folder, for one run. Any thread.

    Args:
        folder: absolute; it is made.
        run_id: whose.
        nbytes: of a checkpoint, as far as is known.

    Raises:
        UsageError: nothing can be written there.
    """

    def __init__(self, folder: Path, run_id: str, nbytes: int = 0) -> None:
        self.folder = folder
        self.files = usable(folder, run_id)
        self.run_id = run_id
        #: Why nothing is staged any more; "" while it is.
        self.off = ""
        self._look(nbytes)

    def _look(self, nbytes: int) -> None:
        """Warn of a folder that will not do."""
        if (kind := file_system(self.folder)) in MEMORY:
            log.warning(
                "--stage %s lies in memory (%s): each checkpoint there takes host memory; name a folder on a disk",
                self.folder,
                kind,
            )
        if (room := self.room()) < 2 * nbytes:
            log.warning(
                "--stage %s has room for %d MiB, two checkpoints take %d MiB: where it runs out, a background "
                "checkpoint is copied to host memory instead",
                self.folder,
                room >> 20,
                2 * nbytes >> 20,
            )

    def room(self) -> int:
        """Bytes that may still be written there."""
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def begin(self, store: BlobStore, attempt: int) -> None:
        """Attempt `attempt` was claimed in `store`: what it stages from here on can be told from all else."""
        key = attempt_key(self.run_id, attempt)
        record = store.get(key)
        try:
            # A number is claimed once: who staged under it did so beside another store. So did who staged under a higher one
            # that this store does not know; kept, it would pass for newer, and what is staged from here on for what may go.
            folders = [each for each in scan(self.files, self.run_id) if each.name.attempt >= attempt]
            higher = {each.name.attempt for each in folders} - {attempt}
            known = {number for number in higher if self._same_record(store, number)}
            self._remove(each for each in folders if each.name.attempt not in known)
            self.files.put(key, memoryview(record))
        except StoreError as error:
            self.switch_off(str(error))

    def switch_off(self, why: str) -> None:
        """Nothing is staged from here on."""
        self.off = why
        log.warning(
            "nothing is staged in %s any more, background checkpoints are copied to host memory: %s",
            self.folder,
            why,
        )

    # --- what is there ---

    def wholes(self, store: BlobStore, *, step: int | None = None) -> Iterator[StagedCheckpoint]:
        """What may be believed and is whole, newest first, each examined when it is asked for."""
        found = whole_checkpoints(self.files, self.run_id, step=step)
        believed: dict[int, bool] = {}
        while True:
            try:
                whole = next(found, None)
            except (StoreError, NewerFormatError) as error:
                # The guarantee is what the store holds: what cannot be read here is a restart's time, and some steps.
                log.warning(
                    "what is staged in %s cannot be read, the store's is taken: %s", self.folder, error
                )
                return
            if whole is None:
                return
            attempt = whole.name.attempt
            if attempt not in believed:
                believed[attempt] = self._same_record(store, attempt)
            if believed[attempt]:
                yield StagedCheckpoint(whole.run_id, whole.name, whole.manifests, whole.tensors)

    def _same_record(self, store: BlobStore, attempt: int) -> bool:
        key = attempt_key(self.run_id, attempt)
        try:
            ours = self.files.get(key)
        except StoreError:
            return False  # whoever cannot be told from a stranger is one
        try:
            return store.get(key) == ours
        except NotFoundError:
            return False

    # --- what goes ---

    def prune(self, name: CheckpointName, nbytes: int) -> bool:
        """`name` is in the store: what is older goes, and where there is no room for another of `nbytes`, it goes too.
        Then True."""
        for keys in plan_pruning(self.files, self.run_id, keep=1).steps():
            self.files.delete(keys)
        if self.room() >= nbytes:
            return False
        self._remove(each for each in scan(self.files, self.run_id) if each.name <= name)
        return True

    def discard(self, name: CheckpointName) -> None:
        """Remove what is there of one that came to nothing."""
        self._remove(each for each in scan(self.files, self.run_id) if each.name == name)

    def _remove(self, folders: Iterable[CheckpointFolder]) -> None:
        doomed = tuple(folders)
        for keys in Pruning((), doomed, frozenset()).steps():
            self.files.delete(keys)


def newest_first(
    staged: Iterator[StagedCheckpoint], stored: Iterator[WholeCheckpoint]
) -> Iterator[WholeCheckpoint]:
    """Both by age; of one that is in both places the staged one first, for a disk is nearer."""
    return heapq.merge(staged, stored, key=lambda whole: whole.name, reverse=True)


def usable(folder: Path, run_id: str) -> FileStore:
    """The folder as a store, which is made, and tried.

    Raises:
        UsageError: nothing can be written there.
    """
    files = FileStore(folder)
    try:
        probe(files, run_id)
    except StoreError as error:
        raise UsageError(f"--stage {folder} (SPOTGUARD_STAGE) cannot be used: {error}") from error
    return files


def file_system(folder: Path, mounts: Path = _MOUNTS) -> str:
    """The type of the file system that `folder` lies on; "" where nobody says."""
    return mounted(folder, mounts)[1]


def mounted(folder: Path, mounts: Path = _MOUNTS) -> tuple[str, str]:
    """Where the file system that `folder` lies on is mounted, and its type; "" both where nobody says."""
    try:
        lines = [line.split(b" ") for line in mounts.read_bytes().split(b"\n")]  # a name need not be UTF-8
    except OSError:
        return "", ""
    real = os.fsencode(os.path.realpath(folder))
    # The later of two mounts on one place hides the first.
    found = [(_ESCAPED.sub(_unescaped, words[1]), words[2]) for words in lines if len(words) > 2]
    over = [(len(place), at, place, kind) for at, (place, kind) in enumerate(found) if _below(real, place)]
    _, _, place, kind = max(over, default=(0, 0, b"", b""))
    return os.fsdecode(place), os.fsdecode(kind)


def _unescaped(octal: re.Match[bytes]) -> bytes:
    return bytes([int(octal[1], 8)])


def _below(path: bytes, place: bytes) -> bool:
    return path == place or path.startswith(place.rstrip(b"/") + b"/")
