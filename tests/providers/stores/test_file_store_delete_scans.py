"""A checkpoint of many ranks is deleted from a folder at a cost that its own size decides."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotguard.providers.stores.file import FileStore

CHECKPOINTS = 4


class Scans:
    """Counts the folders that are read."""

    def __init__(self) -> None:
        self.count = 0
        self._scandir, self._listdir = os.scandir, os.listdir

    def scandir(self, path: Any = ".") -> Iterator[os.DirEntry[str]]:
        self.count += 1
        return self._scandir(path)

    def listdir(self, path: Any = ".") -> list[str]:
        self.count += 1
        return self._listdir(path)


def scans_of_a_delete(root: Path, ranks: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of the first of several checkpoints, whose ranks have a folder each."""
    store = FileStore(root)
    for checkpoint in range(CHECKPOINTS):
        for rank in range(ranks):
            (folder := root / f"run/checkpoints/{checkpoint:03}/{rank:05}").mkdir(parents=True)
            (folder / "0000").write_bytes(b"x")
    scans = Scans()
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", scans.scandir)
        patched.setattr(os, "listdir", scans.listdir)
        store.delete([f"run/checkpoints/000/{rank:05}/0000" for rank in range(ranks)])
    assert sorted(os.listdir(root / "run/checkpoints")) == ["001", "002", "003"]
    return scans.count


def test_file_store_delete_scans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times the ranks: four times the folders, and a few for what they have in common."""
    few = scans_of_a_delete(tmp_path / "few", 8, monkeypatch)
    many = scans_of_a_delete(tmp_path / "many", 32, monkeypatch)
    assert many <= 5 * few
