"""A test that fails and then passes alone lets the run pass, and is named at its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flaky import Record

ROOT = Path(__file__).parents[1]
HOLDS = "def test_that_holds():\n    assert True\n"
#: It fails until a file of its name is there, and makes that file.
BREAKS_ONCE = """
from pathlib import Path
def test_that_breaks_once():
    there = Path(__file__).with_name("there")
    once, _ = there.exists(), there.touch()
    assert once
"""
BREAKS = "def test_that_breaks():\n    assert False\n"


def run(folder: Path, program: str) -> tuple[int, list[str]]:
    """`scripts/again` with this as the only file of tests, with two workers; its code, and what it printed."""
    (folder / "test_it.py").write_text(program)
    command = [
        str(ROOT / "scripts/again"), sys.executable, "-m", "pytest", "-p", "tests.conftest", "--numprocesses=2",
        "--dist=worksteal", "--rootdir", str(folder), str(folder / "test_it.py"),
    ]  # fmt: skip
    env = {**os.environ, "SPOTGUARD_FLAKY": str(folder / "flaky")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, (done.stdout + done.stderr).splitlines()


@pytest.mark.slow
def test_tests_that_pass_the_second_time_are_named_above_the_last_summary(tmp_path: Path) -> None:
    code, said = run(tmp_path, HOLDS + BREAKS_ONCE)
    assert code == 0, said
    first, second = (number for number, line in enumerate(said) if line.startswith("FLAKY:"))
    assert said[first] == "FLAKY: none"  # nothing has passed again yet
    assert said[second : second + 2] == [
        "FLAKY:",
        f"  {Path(sys.prefix).name}: test_it.py::test_that_breaks_once",
    ]
    assert "1 passed" in said[second + 2]  # the summary of the one test that was run again
    # A later run of the series lists it still.
    code, said = run(tmp_path, HOLDS)
    assert code == 0, said
    assert any(line.endswith("test_that_breaks_once") for line in said)


@pytest.mark.slow
def test_a_test_that_fails_twice_is_no_flake(tmp_path: Path) -> None:
    code, said = run(tmp_path, HOLDS + BREAKS)
    assert code == 1, said
    assert [line for line in said if line.startswith("FLAKY:")] == ["FLAKY: none"] * 2
    assert "1 failed" in said[-1] or any("1 failed" in line for line in said[-3:])


def test_a_name_is_listed_once_for_each_environment() -> None:
    failed = Record().then({"a"}, {"b"}, ".venv")
    assert failed == Record(["b"], [])
    again = failed.then({"b"}, set(), ".venv")
    assert again.flaky == [".venv: b"]
    assert again.then(set(), {"b"}, ".venv").then({"b"}, set(), ".venv").flaky == [".venv: b"]
    other = again.then(set(), {"b"}, ".venv-3.12").then({"b"}, set(), ".venv-3.12")
    assert other.lines() == ["FLAKY:", "  .venv: b", "  .venv-3.12: b"]


def test_a_test_skipped_or_deselected_the_second_time_is_no_flake() -> None:
    failed = Record().then(set(), {"a"}, ".venv")
    assert failed.then({"b"}, set(), ".venv").lines() == ["FLAKY: none"]
    # It passed, and broke in its teardown.
    assert failed.then({"a"}, {"a"}, ".venv") == Record(["a"], [])
