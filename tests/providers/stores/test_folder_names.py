"""A folder's URL that leads through a file is refused; what only is not there is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotguard.providers.errors import UsageError
from spotguard.providers.stores.folder_names import check_folder


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
