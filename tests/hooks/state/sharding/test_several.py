"""Four real ranks, in each of torch's ways: what they hold is the whole, and goes into any other way. See the program."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

PROGRAM = Path(__file__).parent / "programs" / "several.py"
ROOT = Path(__file__).parents[4]


@pytest.mark.timeout(300)
@pytest.mark.slow  # 18 s of processor time; `test_worlds` has each way by itself in the fast tier
def test_every_way_comes_apart_and_together_in_every_other(tmp_path: Path) -> None:
    """Under DDP, fully_shard, HSDP, tensor parallel and both; no collective; the losses of a run without us."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT)]),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    ranks = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(tmp_path / "meet")],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = ranks.communicate(timeout=280)
    finally:
        with contextlib.suppress(ProcessLookupError):  # all have ended
            os.killpg(ranks.pid, signal.SIGKILL)
        ranks.wait()
    assert ranks.returncode == 0, said
    assert said.count("held") == 4, said
