"""DDP of more than two ranks goes on bit for bit where its buckets are the same in every life of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.wholepath]

PROGRAM = Path(__file__).parent / "programs" / "averaged.py"


def digests(folder: Path, how: str) -> dict[str, str]:
    """What six steps come to: in one life, and in two."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), how],
        cwd=folder,
        env={
            **os.environ,
            "SPOTGUARD_STORE": f"file://{folder}/store",
            "SPOTGUARD_RUN_ID": "r",
            "SPOTGUARD_EVERY": "off",
            "GLOO_SOCKET_IFNAME": "lo",
            "RES_OPTIONS": "timeout:1 attempts:1",  # c10d asks for the name of every host
        },
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split() for line in done.stdout.splitlines())


@pytest.mark.parametrize("how", ["laid-out", pytest.param("unused", marks=pytest.mark.soak)])
def test_three_ranks_go_on_bit_for_bit(tmp_path: Path, how: str) -> None:
    """As docs/ranks.md says: a pass that is thrown away before the restore, or buckets that never change."""
    said = digests(tmp_path, how)
    assert said["parts"] == said["whole"]


@pytest.mark.soak
@pytest.mark.parametrize("how", ["stock", "torch"])
def test_without_that_torch_itself_does_not(tmp_path: Path, how: str) -> None:
    """Should this fail one day, the page can be shorter."""
    said = digests(tmp_path, how)
    assert said["parts"] != said["whole"]
