"""What one rank of a machine has asked the store for, laid down for the machine's other ranks.

A restore needs the manifests of all ranks, on every rank: 65,000 requests for 256 of them, and eight times a hundred
megabytes through one machine's link. So the first rank of each machine fetches them, and the others read them from a
folder of its own, on a disk or in memory that they share. It is a shortcut and no more: who cannot see that folder (a container of its
own), or finds there what is not as it was laid down, asks the store himself. The folder is for one restore, and goes with it.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from ...providers.stores.store import ObjectInfo
from ..format.crc import crc32

log = logging.getLogger("spotguard")

#: Bytes of the checksum before the rest of a file.
_CRC = 4


class Reads(Protocol):
    """What a catalog asks of a store."""

    url: str

    def get(self, key: str, *, timeout: float | None = None) -> bytes:
        """As `BlobStore.get`."""
        ...

    def list(self, prefix: str, *, timeout: float | None = None) -> Iterator[ObjectInfo]:
        """As `BlobStore.list`."""
        ...


class Shelf:
    """Implements `Reads`. From several threads at once.

    Args:
        store: asked for what is not on the shelf; by who keeps it, for everything.
        keeps: this rank lays down what the store answers.
        folder: where; None: nowhere, as where each rank has a machine to itself.
    """

    def __init__(self, store: Reads, *, keeps: bool, folder: Path | None) -> None:
        self.url = store.url
        self.keeps = keeps
        self._store = store
        self._folder = folder if keeps or _is_ours(folder) else None

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

    def _lay(self, name: str, data: bytes) -> None:
        if not self.keeps or self._folder is None:
            return
        path = self._folder / _file(name)
        try:
            part = path.with_suffix(".part")
            part.write_bytes(crc32(data).to_bytes(_CRC, "big") + data)
            part.replace(path)
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


def new_folder() -> str:
    """Of this user alone. "" where none can be had."""
    try:
        return tempfile.mkdtemp(prefix="spotguard-")
    except OSError as error:
        log.debug("this machine's other ranks fetch by themselves: %s", error)
        return ""


def drop(folder: str) -> None:
    """What is in it was for one restore."""
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def _is_ours(folder: Path | None) -> bool:
    """Whether nobody but this user can have laid anything there."""
    if folder is None:
        return False
    try:
        status = folder.lstat()
    except OSError:  # another machine's, as it turns out: a container has folders of its own
        return False
    return status.st_uid == os.geteuid() and status.st_mode & 0o7777 == 0o700


def _file(name: str) -> str:
    return sha256(name.encode()).hexdigest()
