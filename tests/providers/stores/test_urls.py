"""From an URL to its store, and what is said of an URL that is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spotguard.providers.errors import UsageError
from spotguard.providers.stores.urls import check_url, open_store


@pytest.mark.parametrize("text", ["file://{}", "file://localhost{}"])
def test_a_folder_opens(tmp_path: Path, text: str) -> None:
    """Three slashes, or the one host that every machine is."""
    url = text.format(tmp_path / "store")
    store = open_store(url)
    assert store.url == url
    store.put("run/a", memoryview(b"x"))
    assert (tmp_path / "store/run/a").read_bytes() == b"x"


def test_a_path_with_blanks_is_quoted(tmp_path: Path) -> None:
    """As any URL: %20 is a blank."""
    open_store(f"file://{tmp_path}/my%20store").put("run/a", memoryview(b"x"))
    assert (tmp_path / "my store/run/a").exists()


@pytest.mark.parametrize(
    "url", ["s3://bucket/prefix", "gs://bucket/prefix", "az://container/prefix", "S3://bucket"]
)
def test_a_cloud_of_later_is_refused_clearly(url: str) -> None:
    """With its name, and with what works today."""
    with pytest.raises(UsageError, match=r"is not in this version; file:///path works") as caught:
        open_store(url)
    assert url in str(caught.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("/mnt/checkpoints", "write it as file:///mnt/checkpoints"),
        ("my checkpoints", "write it as file:///"),
        ("", "write it as file:///mnt/checkpoints"),
        ("ftp://host/path", "scheme 'ftp', which is unknown; use file:///path"),
        ("file://mnt/checkpoints", "three slashes: file:///mnt/checkpoints"),
        ("file:///", "names no folder"),
        ("file://", "names no folder"),
        ("file:///a?b", "written %3F or %23"),
        ("file:///a%00b", "names no folder"),
        ("file:/mnt/x", "is not an URL; write it as file:///mnt/x"),
        ("file://[::1/x", "is not an URL"),
    ],
)
def test_what_is_no_store_is_refused_with_the_way_out(url: str, said: str) -> None:
    """One line, with the value and what to write instead."""
    with pytest.raises(UsageError) as caught:
        check_url(url)
    assert said in str(caught.value)
    assert repr(url) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_sdk_is_imported_for_a_folder() -> None:
    """Nor is anything else that costs a start its time."""
    program = (
        "import sys\nfrom spotguard.providers.stores.urls import open_store\nopen_store('file:///x')\n"
        "print(*{name.partition('.')[0] for name in sys.modules} & {'boto3', 'google', 'azure', 'requests', 'torch'})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
