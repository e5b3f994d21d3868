"""What one rank has fetched is there for its neighbours, and never in the place of what the store says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotguard.hooks.checkpoints.shelf import Shelf, drop, new_folder
from tests.fakes.store import FakeStore

KEYS = ["run/checkpoints/a/0.json", "run/checkpoints/a/1.json"]


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore()
    for key in KEYS:
        store.put(key, memoryview(key.encode()))
    store.calls.clear()
    return store


def asked(shelf: Shelf) -> None:
    assert [info.key for info in shelf.list("run/checkpoints/")] == KEYS
    assert [info.size for info in shelf.list("run/checkpoints/")] == [len(key) for key in KEYS]
    assert [shelf.get(key) for key in KEYS] == [key.encode() for key in KEYS]


def test_a_neighbour_asks_the_store_for_nothing(store: FakeStore, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    asked(Shelf(store, keeps=True, folder=tmp_path))
    assert [verb for verb, _ in store.calls] == ["list", "list", "get", "get"]
    store.calls.clear()
    asked(Shelf(store, keeps=False, folder=tmp_path))
    assert store.calls == []


def test_who_keeps_it_always_asks(store: FakeStore, tmp_path: Path) -> None:
    """A second look at what went away is a look."""
    shelf = Shelf(store, keeps=True, folder=tmp_path)
    asked(shelf)
    del store.objects[KEYS[1]]
    assert [info.key for info in shelf.list("run/checkpoints/")] == KEYS[:1]


@pytest.mark.parametrize(
    "harm", ["damaged", "cut short", "empty", "taken away", "not ours alone", "no folder"]
)
def test_who_does_not_find_it_as_it_was_asks_the_store(store: FakeStore, tmp_path: Path, harm: str) -> None:
    tmp_path.chmod(0o755 if harm == "not ours alone" else 0o700)
    asked(Shelf(store, keeps=True, folder=tmp_path))
    for path in tmp_path.iterdir():
        held = path.read_bytes()
        if harm == "damaged":
            path.write_bytes(held[:-1] + b"?")
        elif harm == "cut short":
            path.write_bytes(held[:-1])
        elif harm == "empty":
            path.write_bytes(b"")
        elif harm == "taken away":
            path.unlink()
    store.calls.clear()
    asked(Shelf(store, keeps=False, folder=None if harm == "no folder" else tmp_path))
    assert [verb for verb, _ in store.calls] == ["list", "list", "get", "get"]


def test_a_folder_that_takes_nothing_is_no_failure(store: FakeStore, tmp_path: Path) -> None:
    """A full disk, or one that went away."""
    gone = tmp_path / "gone"
    asked(Shelf(store, keeps=True, folder=gone))
    asked(Shelf(store, keeps=False, folder=gone))
    assert not gone.exists()


def test_a_folder_is_this_users_alone_and_goes_with_what_is_in_it() -> None:
    folder = new_folder()
    try:
        assert os.stat(folder).st_mode & 0o777 == 0o700
        Path(folder, "held").write_bytes(b"1")
    finally:
        drop(folder)
    assert not os.path.exists(folder)
    drop("")
