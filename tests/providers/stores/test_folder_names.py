"""A folder's URL that leads through a file is refused; what only is not there is made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotguard.providers.errors import UsageError
from spotguard.providers.stores.folder_names import check_folder, folder_of
from spotguard.providers.stores.opening import open_store


@pytest.mark.parametrize("below", ["", "/run/x"])
def test_a_file_is_no_folder(tmp_path: Path, below: str) -> None:
    """Nor can one lie in it."""
    file = tmp_path / "a file"
    file.touch()
    with pytest.raises(
        UsageError, match=f"--store: store .*a%20file{below}': {file} is a file: name a folder"
    ):
        check_folder("--store", file.as_uri() + below)


@pytest.mark.parametrize("below", ["", "/not/there/yet", "/link", "/dangling"])
def test_what_is_a_folder_or_can_be_one_is_taken(tmp_path: Path, below: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("mounted-later")
    check_folder("--store", tmp_path.as_uri() + below)
    assert {path.name for path in tmp_path.iterdir()} == {"real", "link", "dangling"}


def test_a_bucket_is_none_of_our_business() -> None:
    check_folder("--store", "s3://dev/null")


def test_a_name_that_is_no_text_is_the_same_folder_to_all(tmp_path: Path) -> None:
    """Names on Linux are bytes. Who takes a folder for another says of it what is not so, and saves elsewhere."""
    folder = tmp_path / os.fsdecode(b"caf\xe9 100%")
    url = folder.as_uri()
    assert url.endswith("caf%E9%20100%25")
    assert folder_of(url) == folder
    open_store(url).put("run/one", memoryview(b"x"))
    assert [os.fsencode(path.name) for path in tmp_path.iterdir()] == [b"caf\xe9 100%"]
    with pytest.raises(UsageError, match="one is a file"):
        check_folder("--store", f"{url}/run/one")


def test_a_name_beyond_ascii_may_stand_as_it_is() -> None:
    assert folder_of("file:///mnt/données") == folder_of("file:///mnt/donn%C3%A9es") == Path("/mnt/données")
