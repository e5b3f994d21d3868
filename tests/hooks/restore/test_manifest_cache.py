"""What one rank has fetched is there for its neighbours, and never in the place of what the store says."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from subprocess import run

import pytest

from spotguard.hooks.restore.manifest_cache import ManifestCache, own_folder
from tests.fakes.store import FakeStore

KEYS = ["run/checkpoints/a/0.json", "run/checkpoints/a/1.json"]


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore()
    for key in KEYS:
        store.put(key, memoryview(key.encode()))
    store.calls.clear()
    return store


def asked(shelf: ManifestCache) -> None:
    assert [info.key for info in shelf.list("run/checkpoints/")] == KEYS
    assert [info.size for info in shelf.list("run/checkpoints/")] == [len(key) for key in KEYS]
    assert [shelf.get(key) for key in KEYS] == [key.encode() for key in KEYS]


def test_a_neighbour_asks_the_store_for_nothing(store: FakeStore, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    asked(ManifestCache(store, keeps=True, folder=tmp_path))
    assert [verb for verb, _ in store.calls] == ["list", "list", "get", "get"]
    store.calls.clear()
    asked(ManifestCache(store, keeps=False, folder=tmp_path))
    assert store.calls == []


def test_the_rank_that_fills_the_cache_always_asks_the_store(store: FakeStore, tmp_path: Path) -> None:
    """A second look at what went away is a look."""
    shelf = ManifestCache(store, keeps=True, folder=tmp_path)
    asked(shelf)
    del store.objects[KEYS[1]]
    assert [info.key for info in shelf.list("run/checkpoints/")] == KEYS[:1]


@pytest.mark.parametrize(
    "harm", ["damaged", "cut short", "empty", "taken away", "not ours alone", "no folder"]
)
def test_a_changed_cache_file_is_fetched_from_the_store(store: FakeStore, tmp_path: Path, harm: str) -> None:
    tmp_path.chmod(0o755 if harm == "not ours alone" else 0o700)
    asked(ManifestCache(store, keeps=True, folder=tmp_path))
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
    asked(ManifestCache(store, keeps=False, folder=None if harm == "no folder" else tmp_path))
    assert [verb for verb, _ in store.calls] == ["list", "list", "get", "get"]


def test_a_folder_that_takes_nothing_is_no_failure(store: FakeStore, tmp_path: Path) -> None:
    """A full disk, or one that went away."""
    gone = tmp_path / "gone"
    asked(ManifestCache(store, keeps=True, folder=gone))
    asked(ManifestCache(store, keeps=False, folder=gone))
    assert not gone.exists()


def test_a_folder_of_a_group_is_this_users_alone_all_the_same(store: FakeStore, tmp_path: Path) -> None:
    """Where $TMPDIR hands its group down, what is made in it bears the mark."""
    tmp_path.chmod(0o2700)
    asked(ManifestCache(store, keeps=True, folder=tmp_path))
    store.calls.clear()
    asked(ManifestCache(store, keeps=False, folder=tmp_path))
    assert store.calls == []


def test_manifests_no_longer_wanted_make_room(store: FakeStore, tmp_path: Path) -> None:
    """A checkpoint that was damaged; the next one's stays, and the listing."""
    shelf = ManifestCache(store, keeps=True, folder=tmp_path)
    store.put("run/checkpoints/b/0.json", memoryview(b"1"))
    found = [info.key for info in shelf.list("run/checkpoints/")]
    for key in found:
        shelf.get(key)
    assert len([*tmp_path.iterdir()]) == 4
    shelf.forget("run/checkpoints/a/")
    assert len([*tmp_path.iterdir()]) == 2
    tmp_path.chmod(0o700)
    store.calls.clear()
    neighbour = ManifestCache(store, keeps=False, folder=tmp_path)
    assert [info.key for info in neighbour.list("run/checkpoints/")] == found
    assert neighbour.get("run/checkpoints/b/0.json") == b"1"
    assert store.calls == []


def test_a_folder_is_this_users_alone_and_goes_with_what_is_in_it() -> None:
    with own_folder() as folder:
        assert os.stat(folder).st_mode & 0o777 == 0o700
        Path(folder, "held").write_bytes(b"1")
    assert not os.path.exists(folder)


def test_the_folder_of_one_who_was_killed_goes_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that of one who is reading stays, and whatever else lies there."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = (
        "import os, signal\n"
        "from spotguard.hooks.restore.manifest_cache import own_folder\n"
        "with own_folder() as folder:\n"
        "    open(os.path.join(folder, 'held'), 'w').close()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, timeout=100, check=False)
    (left,) = tmp_path.iterdir()
    (tmp_path / "spotguard-other").mkdir()
    (tmp_path / f"{left.name}-link").symlink_to(left)
    with own_folder() as one, own_folder() as other:
        assert not left.exists()
        assert os.path.isdir(one)
        assert os.path.isdir(other)
    assert {path.name for path in tmp_path.iterdir()} == {"spotguard-other", f"{left.name}-link"}
