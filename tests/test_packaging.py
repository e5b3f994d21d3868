"""The wheel holds the sources, all of them and nothing else."""

from __future__ import annotations

import re
import tomllib
import zipfile
from pathlib import Path

import pytest

from spotguard.providers.optional_deps import PACKAGES
from tests.wheel import build_wheel

ROOT = Path(__file__).parents[1]
ROOMS = {"agent": "spotguard/agent", "hooks": "spotguard/hooks", "providers": "spotguard/providers"}
FACE = "packaging/spotguard"


def sources() -> dict[str, Path]:
    """Every file that belongs in the package, by its path below site-packages."""
    found = {}
    for folder, below in {**ROOMS, FACE: "spotguard"}.items():
        top = ROOT / folder
        for path in top.rglob("*"):
            inner = path.relative_to(top)
            # The links to the rooms lie in the face's folder: a room is counted once, where it really is.
            linked = folder == FACE and inner.parts[0] in ROOMS
            if path.is_file() and "__pycache__" not in inner.parts and not linked:
                found[f"{below}/{inner.as_posix()}"] = path
    return found


def test_the_packages_of_a_hint_are_those_of_its_extra() -> None:
    """But for other extras of ours, and what a SDK brings itself: that is declared, because it is imported by name."""
    brought = ("spotguard[", "botocore>", "google-auth>", "google-crc32c>", "azure-core>")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, packages in PACKAGES.items():
        assert [each for each in extras[name] if not each.startswith(brought)] == [*packages]


def test_each_imported_package_is_declared() -> None:
    """Another package's dependency may be gone with its next version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    declared = {re.split(r"[<>=;\[ ]", each)[0] for each in said}
    assert {"urllib3", "botocore", "google-auth", "google-crc32c", "azure-core"} <= declared


def test_every_package_is_listed() -> None:
    """A folder with an `__init__.py` that pyproject.toml does not list would be left out without a word."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {
        Path(name).parent.as_posix().replace("/", ".") for name in sources() if name.endswith("/__init__.py")
    }
    assert there == set(listed)


def test_every_module_is_in_a_package() -> None:
    """A module in a folder without an `__init__.py` works in a checkout and is missing in the wheel."""
    folders = {path.parent for path in sources().values() if path.suffix == ".py"}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_the_rooms_are_relative_links() -> None:
    """An absolute link would hold on one machine only; a copy would go stale."""
    for room in ROOMS:
        link = ROOT / FACE / room
        assert link.is_symlink(), f"{link} is no link: was this cloned without symlink support?"
        assert link.readlink() == Path("../..") / room


def test_the_folder_packaging_is_no_package() -> None:
    """It would shadow the library `packaging` wherever the root is on sys.path."""
    assert not (ROOT / "packaging/__init__.py").exists()


def test_the_wheel_is_exactly_the_sources(tmp_path: Path) -> None:
    pytest.importorskip("build")
    wheel = build_wheel(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        inside = {name: archive.read(name) for name in archive.namelist() if name.startswith("spotguard/")}
        metadata = {name for name in archive.namelist() if not name.startswith("spotguard/")}
        startup = archive.read("spotguard-attach.pth").decode()
    assert startup.startswith("import os; os.environ.get('SPOTGUARD_ATTACH') and ")
    assert startup.count("\n") == 1
    assert inside == {name: path.read_bytes() for name, path in sources().items()}
    (dist_info,) = {Path(name).parts[0] for name in metadata - {"spotguard-attach.pth"}}
    assert f"{dist_info}/licenses/LICENSE" in metadata
