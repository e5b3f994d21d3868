"""Four real ranks, in each of torch's ways: what they hold is the whole, and goes into any other way. See the program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

PROGRAM = Path(__file__).parent / "programs" / "several.py"
ROOT = Path(__file__).parents[3]


def test_every_way_comes_apart_and_together_in_every_other(tmp_path: Path) -> None:
    """Under DDP, fully_shard, HSDP, tensor parallel and both; no collective; the losses of a run without us."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = []
    for rank in range(4):
        command = [sys.executable, str(PROGRAM), str(rank), str(tmp_path / "meet")]
        ranks.append(
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    try:
        said = [each.communicate(timeout=100)[0] for each in ranks]
    finally:
        for each in ranks:
            each.kill()
            each.wait()
    assert [each.returncode for each in ranks] == [0] * 4, "\n".join(said)
    assert all("held" in each for each in said)
