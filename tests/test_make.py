"""`make` says what pip fetches before it does, and takes torch from the index that is named."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[1] / "Makefile"
INDEX = "http://127.0.0.1:9/cpu"

#: Makes environments of copies of itself, and only prints what pip is to do. A file beside it is the torch that it has.
PYTHON = """#!/bin/sh
case "$1 $2" in
    -V*) echo "Python VERSION" ;;
    *torch*) [ -e "$(dirname "$0")/torch" ] ;;
    "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip") shift 3; echo "pip $*" ;;
esac
"""


class Clone:
    """A folder with the Makefile, and a Python that fetches nothing."""

    def __init__(self, folder: Path, version: str) -> None:
        self.folder = folder
        for room in ("agent", "hooks", "providers", "packaging"):
            (folder / room).mkdir()
        shutil.copy(MAKEFILE, folder)
        for name in ("pyproject.toml", "constraints.txt", "MANIFEST.in", "LICENSE"):
            (folder / name).touch()
        self._python = folder / "python"
        self._python.write_text(PYTHON.replace("VERSION", version))
        self._python.chmod(0o755)

    def make(self, *words: str) -> list[str]:
        """Lines of `make .venv/ready` that are no command's echo."""
        done = subprocess.run(
            ["make", "--silent", f"PYTHON={self._python}", *words, ".venv/ready"],
            cwd=self.folder,
            # `make times` may have started us: its make would have this one say which folder it enters.
            env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()


def test_torch_alone_comes_from_the_index_that_is_named(tmp_path: Path) -> None:
    """On any Python, before the rest: which then needs no other torch, and brings what torch needs."""
    said, pip, torch, rest = Clone(tmp_path, "3.13.1").make(f"TORCH_INDEX={INDEX}")
    assert said.startswith("making .venv with Python 3.13.1: pip fetches 0.1 GB")
    assert said.endswith(f"torch's CPU build (0.2 GB) from {INDEX}")
    assert pip.endswith("--constraint constraints.txt pip>=25.1")
    assert torch.endswith(f"--constraint constraints.txt --index-url {INDEX} --no-deps torch")
    assert rest.endswith(
        "--constraint constraints.txt --group dev --group docs --editable .[s3,gcs,azure,metrics,bootstrap,torch]"
    )


@pytest.mark.parametrize(
    ("version", "size"),
    [
        ("3.11.9", "several GB with its libraries"),
        ("3.12.3", "no torch (TORCH_INDEX=URL brings its CPU build"),
    ],
)
def test_without_an_index_it_says_what_pip_may_bring(tmp_path: Path, version: str, size: str) -> None:
    """And how to have less. pip is given no index: its own settings stand."""
    clone = Clone(tmp_path, version)
    said, _, rest = clone.make()
    assert size in said
    assert "TORCH_INDEX=URL" in said
    assert rest.endswith("--editable .[s3,gcs,azure,metrics,bootstrap]")
    assert "index-url" not in rest
    assert [line for line in clone.make() if "up to date" not in line] == []


def test_an_index_brings_torch_into_an_environment_that_has_none(tmp_path: Path) -> None:
    clone = Clone(tmp_path, "3.12.3")
    clone.make()
    _, torch, _ = clone.make(f"TORCH_INDEX={INDEX}")
    assert torch.endswith("--no-deps torch")
    (tmp_path / ".venv/bin/torch").touch()
    assert [line for line in clone.make(f"TORCH_INDEX={INDEX}") if "up to date" not in line] == []
