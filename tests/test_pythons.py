"""`make test-pythons` where there is no other Python: loud, and a failure where they are required."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "test-pythons"


@pytest.mark.parametrize(("required", "code"), [("", 0), ("1", 1)])
def test_nothing_tested_is_said_and_may_be_a_failure(tmp_path: Path, required: str, code: int) -> None:
    for program in ("bash", "dirname", "mktemp", "rm"):  # all that it needs, and no Python
        found = shutil.which(program)
        assert found is not None
        (tmp_path / program).symlink_to(found)
    env = {"PATH": str(tmp_path), "HOME": os.environ.get("HOME", "/"), "SPOTGUARD_REQUIRE_PYTHONS": required}
    done = subprocess.run(
        [tmp_path / "bash", SCRIPT], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    assert "NOTHING WAS TESTED" in done.stderr
    assert "passed on" not in done.stdout
