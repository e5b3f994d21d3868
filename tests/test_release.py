"""What a release is made of: workflows that run our targets, links that work on a package index, archives that build."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_every_action_is_pinned_by_digest_with_its_version(workflow: Path) -> None:
    uses = re.findall(r"uses: (.*)$", workflow.read_text(), re.MULTILINE)
    assert uses
    assert [
        each for each in uses if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)
    ] == []


def test_every_target_of_a_workflow_is_one_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        word
        for workflow in WORKFLOWS
        for line in re.findall(r"\bmake ((?:[a-z-]+ ?)+)", re.sub("#.*", "", workflow.read_text()))
        for word in line.split()
    }
    assert {"check", "wheel", "soak", "site", "release-check"} <= named <= targets


def _metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: str) -> dict[str, Any]:
    """What setup.py passes to setuptools, where the project lives at `places`."""
    for name in ("README.md", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "packaging").mkdir()
    (tmp_path / "packaging" / "release.toml").write_text(places)
    passed: dict[str, Any] = {}
    monkeypatch.setattr("setuptools.setup", lambda **keywords: passed.update(keywords))
    runpy.run_path(str(tmp_path / "setup.py"))
    return passed


def test_the_readme_of_a_release_has_no_relative_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package index shows it away from the repository."""
    home = 'repository = "https://code.example.org/s"\ndocumentation = "https://docs.example.org/s"\n'
    passed = _metadata(tmp_path, monkeypatch, home)
    links = re.findall(r"\]\(([^)\s]+)\)", passed["long_description"])
    assert [link for link in links if not link.startswith("https://")] == []
    assert "](https://code.example.org/s/raw/main/docs/images/resumed.svg)" in passed["long_description"]
    assert "](https://code.example.org/s/blob/main/docs/tutorial.md)" in passed["long_description"]
    assert passed["project_urls"]["Documentation"] == "https://docs.example.org/s"


def test_a_project_without_a_home_names_no_dead_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = (ROOT / "packaging" / "release.toml").read_text()
    if "OWNER" not in places:
        pytest.skip("the project has a home")
    passed = _metadata(tmp_path, monkeypatch, places)
    assert passed["project_urls"] == {}
    assert passed["long_description"] == (ROOT / "README.md").read_text()


def test_a_release_that_is_not_ready_is_refused(tmp_path: Path) -> None:
    """By one line for each reason; nothing is built or changed by the check itself."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "packaging").mkdir()
    shutil.copy(ROOT / "scripts" / "release-check", tmp_path / "scripts")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "0.1.0.dev0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n")
    (tmp_path / "CITATION.cff").write_text("version: 0.0.9\n")
    (tmp_path / "packaging" / "release.toml").write_text('repository = "https://code.example.org/OWNER/s"\n')
    before = sorted(tmp_path.rglob("*"))
    done = subprocess.run(
        [sys.executable, "scripts/release-check"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    for words in (
        "version '0.1.0.dev0': expected X.Y.Z",
        "CITATION.cff: its version is not 0.1.0.dev0",
        "build/sbom.cdx.json is not there",
        "no section '## 0.1.0.dev0'",
        "no tag v0.1.0.dev0",
        "replace OWNER",
        "0 wheels and 0 source archives",
    ):
        assert sum(words in line for line in lines) == 1, (words, lines)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_source_archive_builds_without_a_warning_and_its_tests_are_found(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source, target = ROOT / name, copy / name
        if source.is_file() and not source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    command = [sys.executable, "-Im", "build", "--no-isolation", str(copy)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr
    assert "would be ignored" not in built.stdout + built.stderr
    (archive,) = copy.glob("dist/*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", "tests/cli"],
        cwd=unpacked,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr


def test_the_tools_that_build_the_archives_are_pinned_by_digest() -> None:
    """In the versions that every other environment has."""
    lines = [
        line for line in (ROOT / "packaging" / "build-tools.txt").read_text().splitlines() if line[0] != "#"
    ]
    pinned = [re.fullmatch(r"([\w-]+==[\w.]+) --hash=sha256:[0-9a-f]{64}", line) for line in lines]
    assert all(pinned)
    assert {each[1] for each in pinned if each} < set((ROOT / "constraints.txt").read_text().splitlines())
