"""Each test is in one tier, and the fast one starts no server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import few_fast

PROGRAM = """
import pytest

def test_fast():
    pass

def test_that_asks(require_server):
    pass

@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_a_cloud(scheme, request):
    pass

@pytest.mark.parametrize("scheme", ["az"])
def test_a_word(scheme):
    pass

def test_that_hides_it(request):
    request.getfixturevalue("require_server")("bash")

def test_that_may(require_program):
    try:
        require_program("moto_server")
    except pytest.skip.Exception:
        pass  # it is not installed
"""
FAST = {"test_fast", "test_a_cloud[s3]", "test_a_word[az]", "test_that_may"}


def test_a_test_that_needs_a_server_is_slow_and_a_fast_one_gets_none(tmp_path: Path) -> None:
    """By its fixtures and its parameters; where both are silent, the fast tier refuses the program, installed or not."""
    (tmp_path / "test_it.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "tests.conftest", "-p", "no:cacheprovider", "-m", "not slow", str(tmp_path)],
        cwd=Path(__file__).parents[1], env={"PATH": ""}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    passed = {line.partition("::")[2] for line in said.splitlines() if line.startswith("PASSED")}
    assert passed == FAST, said
    assert "bash is a server, and the fast tier has none" in said
    assert "1 failed" in said
    assert "2 deselected" in said


@pytest.mark.slow
def test_ci_misses_a_server_in_a_worker_too(tmp_path: Path) -> None:
    """The workers of xdist begin in an environment that is swept: they are told."""
    (tmp_path / "test_it.py").write_text(
        "def test_it(require_server):\n    require_server('no-such-server')\n"
    )
    for required, said in (("1", "1 failed"), ("", "1 skipped")):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "--numprocesses=1", str(tmp_path)],
            cwd=Path(__file__).parents[1], env={**os.environ, "SPOTGUARD_REQUIRE_SERVERS": required}, capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        assert said in done.stdout, done.stdout + done.stderr


def test_few_rows_are_fast() -> None:
    one = few_fast(["a", "b", "c"])
    assert [row.values for row in one] == [("a",), ("b",), ("c",)]
    assert [[mark.name for mark in row.marks] for row in one] == [[], ["slow"], ["slow"]]
    two = few_fast([(1, "x"), (2, "y")], 2)
    assert [(row.values, row.marks) for row in two] == [((1, "x"), []), ((2, "y"), [])]


@pytest.mark.slow
def test_a_slow_test_may_ask(require_server: object) -> None:
    assert callable(require_server)
