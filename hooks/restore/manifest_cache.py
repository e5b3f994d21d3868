"""The manifest cache: answers of the store that one rank of a machine shares with the machine's other ranks.

A restore needs the manifests of all ranks, on every rank: 65,000 requests for 256 of them, and eight times a hundred
megabytes through one machine's link. So the first rank of each machine fetches them into a directory of its own. The directory is on
a disk or in memory that the machine's ranks share, and the other ranks read from there.

The cache only saves requests. A rank in a container of its own may not see the directory. It then asks the store itself, and so
does a rank that finds a wrong checksum. The directory serves one restore and is removed at its end.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from ...providers.stores.base import ObjectInfo
from ..checkpoint.catalog import ReadableStore
from ..checkpoint.format.crc import crc32

log = logging.getLogger("spotguard")

#: Prefixes of a directory's name: once its maker holds the lock, and before.
_PREFIX, _UNHELD = "spotguard-shelf-", "spotguard-unheld-"
#: Bytes of the checksum at the head of each file.
_CRC = 4


class ManifestCache:
    """A `ReadableStore` with a cache on this machine. Several threads may call it at once.

    Args:
        store: answers requests that the cache cannot; for the rank that keeps the cache, every request.
        keeps: whether this rank writes the store's answers into the cache.
        folder: the directory of the cache. None: there is no cache, because each rank has a machine to itself.
    """

    def __init__(self, store: ReadableStore, *, keeps: bool, folder: Path | None) -> None:
        self.url = store.url
        self.keeps = keeps
        self._store = store
        self._folder = folder if keeps or _is_ours(folder) else None
        #: The cached files, by the key or listing that they answer.
        self._laid: dict[str, Path] = {}

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        if not self.keeps and (cached := self._take(key)) is not None:
            return cached
        data = self._store.get(key, timeout=timeout)
        self._lay(key, data)
        return data

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        name = f"list {prefix}"  # no key has a space, so this is no key
        if not self.keeps and (cached := self._take(name)) is not None:
            return iter([ObjectInfo(*each) for each in json.loads(cached)])
        listed = [*self._store.list(prefix, timeout=timeout)]
        self._lay(name, json.dumps([(info.key, info.size, info.modified) for info in listed]).encode())
        return iter(listed)

    def forget(self, prefix: str) -> None:
        """Remove the cached objects under a prefix that no rank needs any more."""
        for name in [each for each in self._laid if each.startswith(prefix)]:
            with suppress(OSError):  # the file is removed with the directory
                self._laid.pop(name).unlink()

    def _lay(self, name: str, data: bytes) -> None:
        if not self.keeps or self._folder is None:
            return
        path = self._folder / _file(name)
        try:
            part = path.with_suffix(".part")
            part.write_bytes(crc32(data).to_bytes(_CRC, "big") + data)
            part.replace(path)
            self._laid[name] = path
        except OSError as error:  # the other ranks ask the store, which costs requests and nothing else
            log.debug("the other ranks of this machine fetch their own manifests: %s", error)

    def _take(self, name: str) -> bytes | None:
        if self._folder is None:
            return None
        try:
            content = (self._folder / _file(name)).read_bytes()
        except OSError:  # not cached, or not visible to this rank
            return None
        data = content[_CRC:]
        return data if crc32(data).to_bytes(_CRC, "big") == content[:_CRC] else None


@contextmanager
def own_folder() -> Iterator[str]:
    """Yield a new directory that only this user can open, and remove it at the end. Yield "" if none can be made."""
    lock: int | None = None
    try:
        _sweep()
        made = Path(tempfile.mkdtemp(prefix=_UNHELD))
        lock = _hold(made)
        # Renamed once the lock is held: another process would sweep away an unlocked directory with this prefix.
        folder = made.rename(made.with_name(_PREFIX + made.name.removeprefix(_UNHELD)))
    except OSError as error:
        log.debug("the other ranks of this machine fetch their own manifests: %s", error)
        yield ""
        return
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _sweep() -> None:
    """Remove the directories that killed processes of this user left: no process holds their locks."""
    with os.scandir(tempfile.gettempdir()) as entries:
        folders = [Path(entry.path) for entry in entries if entry.name.startswith(_PREFIX)]
    for path in folders:
        if _is_ours(path) and (lock := _hold(path)) is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _hold(folder: Path) -> int | None:
    """Lock a directory and return the descriptor, which holds the lock until it is closed or the process ends.

    The result is None if another process holds the lock, or the directory cannot be locked.
    """
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # its owner has removed it
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def _is_ours(folder: Path | None) -> bool:
    """Return whether only this user can have written to the directory."""
    if folder is None:
        return False
    try:
        status = folder.lstat()
    except OSError:  # not on this rank's file system: a container has directories of its own
        return False
    # The set-group-ID bit is ignored: a parent directory that passes its group down passes this bit down too.
    mode = stat.S_IMODE(status.st_mode) & ~stat.S_ISGID
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and mode == stat.S_IRWXU


def _file(name: str) -> str:
    return sha256(name.encode()).hexdigest()
