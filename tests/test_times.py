"""The table of the suite's time in CONTRIBUTING.md is that of the last record."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.times import RECORD, Times, part_of, table

ROOT = Path(__file__).parents[1]


def test_the_page_shows_the_record(request: pytest.FixtureRequest) -> None:
    if any(isinstance(plugin, Times) for plugin in request.config.pluginmanager.get_plugins()):
        pytest.skip("make times makes the record now")
    record = json.loads(RECORD.read_text())
    shown = [line for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if line.startswith("|")]
    begin = shown.index(table(record)[0])
    assert shown[begin : begin + len(table(record))] == table(record), (
        "paste what python -m tests.times prints"
    )


def test_a_part_is_a_folder() -> None:
    assert part_of("tests/agent/core/test_budget.py::test_it[a/b-c]") == "tests/agent"
    assert part_of("tests/providers/stores/s3/test_store.py::test_it") == "tests/providers"
    assert part_of("tests/hooks/ranks/test_stages.py::test_it") == "tests/hooks/ranks"
    assert part_of("tests/hooks/control/test_gate.py::TestIt::test_it") == "tests/hooks/control"
    assert part_of("tests/test_times.py::test_it") == "tests"


PROGRAM = """
import subprocess, sys, pytest

def test_busy():
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)

@pytest.mark.slow
def test_slow():
    pass
"""


@pytest.mark.slow
def test_a_run_is_recorded_by_its_workers(tmp_path: Path) -> None:
    """With the processor time of children; the record of another tier stays, and a second run is added."""
    (tmp_path / "tests" / "some").mkdir(parents=True)
    (tmp_path / "tests" / "some" / "test_it.py").write_text(PROGRAM)
    record = tmp_path / "times.json"
    record.write_text(
        json.dumps({"soak": {}, "fast": {"seconds": 100.0, "parts": {"tests/other": [2, 3.0, 4.0]}}})
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--numprocesses=1", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT, env={**os.environ, "SPOTGUARD_TIMES": str(record)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(record.read_text())
    assert said.keys() == {"soak", "fast", "slow"}
    assert said["fast"]["seconds"] > 100
    assert said["fast"]["parts"]["tests/other"] == [2, 3.0, 4.0]
    tests, workers, processors = said["fast"]["parts"]["tests/some"]
    assert tests == 1
    assert workers > 0
    assert processors > 0
    assert said["slow"]["parts"]["tests/some"][0] == 1
