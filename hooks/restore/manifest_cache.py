"""What one rank of a machine has asked the store for, laid down for the machine's other ranks.

A restore needs the manifests of all ranks, on every rank: 65,000 requests for 256 of them, and eight times a hundred
megabytes through one machine's link. So the first rank of each machine fetches them, and the others read them from a
folder of its own, on a disk or in memory that they share. It is a shortcut and no more: who cannot see that folder (a container of its
own), or finds there what is not as it was laid down, asks the store himself. The folder is for one restore, and goes with it.
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

#: How folders are called; and before their maker holds them.
_PREFIX, _UNHELD = "spotguard-shelf-", "spotguard-unheld-"
#: Bytes of the checksum before the rest of a file.
_CRC = 4


class ManifestCache:
    """Implements `ReadableStore`. From several threads at once.

    Args:
        store: asked for what is not on the shelf; by who keeps it, for everything.
        keeps: this rank lays down what the store answers.
        folder: where; None: nowhere, as where each rank has a machine to itself.
    """

    def __init__(self, store: ReadableStore, *, keeps: bool, folder: Path | None) -> None:
        self.url = store.url
        self.keeps = keeps
        self._store = store
        self._folder = folder if keeps or _is_ours(folder) else None
        #: Where what was laid down is.
        self._laid: dict[str, Path] = {}

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        if not self.keeps and (held := self._take(key)) is not None:
            return held
        data = self._store.get(key, timeout=timeout)
        self._lay(key, data)
        return data

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        name = f"list {prefix}"  # no key has a space
        if not self.keeps and (held := self._take(name)) is not None:
            return iter([ObjectInfo(key, size) for key, size in json.loads(held)])
        found = [*self._store.list(prefix, timeout=timeout)]
        self._lay(name, json.dumps([(info.key, info.size) for info in found]).encode())
        return iter(found)

    def forget(self, prefix: str) -> None:
        """Make room: nobody wants these any more."""
        for name in [each for each in self._laid if each.startswith(prefix)]:
            with suppress(OSError):  # it goes with the folder
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
        except OSError as error:  # the others ask the store: it costs requests, and nothing else
            log.debug("this machine's other ranks fetch by themselves: %s", error)

    def _take(self, name: str) -> bytes | None:
        if self._folder is None:
            return None
        try:
            held = (self._folder / _file(name)).read_bytes()
        except OSError:  # not laid down, or not for us to see
            return None
        data = held[_CRC:]
        return data if crc32(data).to_bytes(_CRC, "big") == held[:_CRC] else None


@contextmanager
def own_folder() -> Iterator[str]:
    """Of this user alone, until the end of it. "" where none can be had."""
    held: int | None = None
    try:
        _sweep()
        made = Path(tempfile.mkdtemp(prefix=_UNHELD))
        held = _hold(made)
        # Only now may others find it, who would sweep away what nobody holds.
        folder = made.rename(made.with_name(_PREFIX + made.name.removeprefix(_UNHELD)))
    except OSError as error:
        log.debug("this machine's other ranks fetch by themselves: %s", error)
        yield ""
        return
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if held is not None:
            os.close(held)


def _sweep() -> None:
    """Remove what was left by those of this user who were killed: nobody holds it."""
    with os.scandir(tempfile.gettempdir()) as entries:
        found = [Path(entry.path) for entry in entries if entry.name.startswith(_PREFIX)]
    for path in found:
        if _is_ours(path) and (held := _hold(path)) is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(held)


def _hold(folder: Path) -> int | None:
    """Hold it, until the process ends or what is returned is closed. None where another one does, or nobody can."""
    try:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # it went, with who had it
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return None
    return held


def _is_ours(folder: Path | None) -> bool:
    """Whether nobody but this user can have laid anything there."""
    if folder is None:
        return False
    try:
        status = folder.lstat()
    except OSError:  # another machine's, as it turns out: a container has folders of its own
        return False
    # (A folder that hands its group down hands that bit down too.)
    mode = stat.S_IMODE(status.st_mode) & ~stat.S_ISGID
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and mode == stat.S_IRWXU


def _file(name: str) -> str:
    return sha256(name.encode()).hexdigest()
