"""A job of several ranks that ends while a background checkpoint is on its way ends with that checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spotguard.hooks.checkpoint.catalog import whole_checkpoints
from spotguard.providers.stores.file import FileStore

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parent / "programs" / "last_upload.py"


@pytest.mark.slow
def test_last_upload_at_exit(folder: Path) -> None:
    """It is committed, nothing is said to have failed, and of `--keep 1` the one before is gone."""
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    whole = [each.name.step for each in whole_checkpoints(FileStore(folder), "run")]
    assert max(whole) >= 2, ended.stderr
    assert "failed" not in ended.stderr
    assert len(whole) == 1, ended.stderr
