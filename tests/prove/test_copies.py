"""Copies of the working folder, and what is refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import IO

import pytest

from spotguard.prove import copies
from spotguard.prove.copies import Original, beside, check_size, copy, links, written
from spotguard.providers.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "job"
    (made / "src").mkdir(parents=True)
    (made / "train.py").write_text("print('trained')")
    (made / "src" / "data.py").write_text("x = 1")
    (made / "data").mkdir()
    (made / "data" / "large.bin").write_bytes(b"0" * 4096)
    (made / "spotguard-checkpoints").mkdir()
    (made / "spotguard-checkpoints" / "chunk").write_text("of another run")
    (made / "latest").symlink_to("train.py")
    return made


def test_a_copy_has_the_files_and_not_the_checkpoints(folder: Path, tmp_path: Path) -> None:
    os.chmod(folder / "train.py", 0o755)
    copy(Original(folder), tmp_path / "copy")
    found = sorted(path.relative_to(tmp_path / "copy").as_posix() for path in (tmp_path / "copy").rglob("*"))
    assert found == ["data", "data/large.bin", "latest", "src", "src/data.py", "train.py"]
    assert os.readlink(tmp_path / "copy" / "latest") == "train.py"
    assert os.stat(tmp_path / "copy" / "train.py").st_mode & 0o777 == 0o755
    (tmp_path / "copy" / "train.py").write_text("changed")
    assert (folder / "train.py").read_text() == "print('trained')"


def test_written_files_are_those_that_are_not_as_in_the_original(folder: Path, tmp_path: Path) -> None:
    original, at = Original(folder), tmp_path / "copy"
    copy(original, at)
    assert written(original, at) == {}
    (at / "src" / "data.py").write_text("x = 12")
    (at / "best.pt").write_text("0.5")
    (at / "spotguard-checkpoints").mkdir()
    (at / "spotguard-checkpoints" / "chunk").touch()
    assert [*written(original, at)] == ["best.pt", "src/data.py"]


@pytest.mark.parametrize("error", [PermissionError, FileNotFoundError])
def test_a_written_file_that_cannot_be_read_is_left_out(
    folder: Path, tmp_path: Path, error: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script may not read it, or it vanishes. Root reads everything, so the error is played."""
    original, at = Original(folder), tmp_path / "copy"
    copy(original, at)
    (at / "a.lock").touch()
    (at / "best.pt").touch()

    def opened(path: str, mode: str) -> IO[bytes]:
        if path.endswith("a.lock"):
            raise error
        return open(path, mode)

    monkeypatch.setattr(copies, "open", opened, raising=False)
    assert [*written(original, at)] == ["best.pt"]


@pytest.mark.torch
def test_a_saved_file_counts_by_its_values(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def digest(*names: str, last: float = 1.0, **more: object) -> tuple[str, str]:
        state = {"w": torch.tensor([2.0, last]), "t": torch.eye(2).to_sparse(), "names": names, **more}
        torch.save(state, at := tmp_path / "out.pt")
        contents.append(at.read_bytes())
        return copies._digests(str(at))

    contents: list[bytes] = []
    shared, fresh = "adam", "".join(["ad", "am"])
    found = digest(shared, shared)
    assert digest(shared, fresh) == found, "the pickle refers to a string that it has met"
    assert contents[0] != contents[1]
    others = [
        digest(shared, "sgd"),
        digest(shared, shared, last=1.0000001),
        digest(shared, shared, kind=torch.float16),
        digest(shared, shared, kind=torch.float32),
        digest(shared, shared, model=torch.nn.Linear(2, 2)),
    ]
    assert len({found, *others}) == 6


def test_folders_that_are_only_read_are_linked_to(folder: Path, tmp_path: Path) -> None:
    """By their name, because somebody said so, and an environment by what lies in it."""
    (folder / ".git").mkdir()
    (folder / "env").mkdir()
    (folder / "env" / "pyvenv.cfg").touch()
    original = Original(folder, links(folder, ["data"]))
    copy(original, tmp_path / "copy")
    for name in (".git", "env", "data"):
        assert os.readlink(tmp_path / "copy" / name) == str(folder / name)
    assert original.size() == len("print('trained')") + len("x = 1")


def test_a_path_out_of_a_copy_leads_to_the_real_file(folder: Path, tmp_path: Path) -> None:
    """A link of its own into the folder leads into the copy; and whoever removes the copy removes nothing else."""
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "words").write_text("a b")
    (folder / "into").symlink_to(folder / "data")
    at = beside(folder, tmp_path / "root")
    copy(Original(folder), at)
    assert (at / ".." / "sets" / "words").read_text() == "a b"
    assert (at / "into").resolve() == (at / "data").resolve() != (folder / "data").resolve()
    shutil.rmtree(tmp_path / "root")
    assert (tmp_path / "sets" / "words").exists()
    assert (folder / "data" / "large.bin").exists()


def test_an_excluded_directory_is_not_copied_into_itself(folder: Path) -> None:
    (folder / "proved").mkdir()
    original = Original(folder).outside_of(folder / "proved")
    assert Original(folder).outside_of(folder.parent) == Original(folder)
    copy(original, folder / "proved" / "copy")
    assert (folder / "proved" / "copy" / "train.py").exists()
    assert not (folder / "proved" / "copy" / "proved").exists()


def test_a_folder_that_is_too_large_is_refused_with_the_ways_out(folder: Path, tmp_path: Path) -> None:
    size, shares = check_size(Original(folder), tmp_path, 10_000, 2)
    assert size == 4096 + len("print('trained')") + len("x = 1")
    if shares:
        pytest.skip("this file system shares blocks, so no copy is too large")
    with pytest.raises(
        UsageError, match=r"holds 4.0 KiB.* more than --copy-limit 1.0 KiB; link data that is only read"
    ):
        check_size(Original(folder), tmp_path, 1024, 2)
    with pytest.raises(UsageError, match=r"copies of the working directory .* are free in"):
        check_size(Original(folder), tmp_path, 2**60, 2**50)
    assert not (tmp_path / ".shares").exists()


def test_a_file_that_cannot_be_read_is_named(folder: Path, tmp_path: Path) -> None:
    """A link to itself stands for what even root cannot open."""
    (folder / "src" / "data.py").unlink()
    os.mkfifo(folder / "src" / "pipe")
    copy(Original(folder), tmp_path / "copy")
    assert not (tmp_path / "copy" / "src" / "pipe").exists(), "neither a file nor a folder"
    with pytest.raises(UsageError, match=r"nowhere cannot be copied: No such file or directory; link to"):
        copy(Original(folder / "nowhere"), tmp_path / "other")


@pytest.mark.parametrize("said", ["nowhere", "train.py", "..", ".", "/etc"])
def test_only_folders_inside_the_working_folder_are_linked_to(folder: Path, said: str) -> None:
    with pytest.raises(UsageError, match="expected a directory inside the working directory"):
        links(folder, [said])
