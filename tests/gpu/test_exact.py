"""`spotguard prove` on trainings of a GPU: a preempted and a killed run go on with the bits of an undisturbed one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

PROGRAM = Path(__file__).parent / "programs" / "exact.py"
ONE = ("plain", "fused", "scaled", "scaled-fused", "images", "averaged", "aside", "attention", "graph")
COMPILED = ("compiled", "reduce-overhead")
RANKS = {"sharded": 1, "offloaded": 1, "replicated": 2}


@pytest.mark.parametrize("case", [*ONE, *COMPILED, *RANKS])
def test_a_preempted_run_has_the_bits_of_an_undisturbed_one(tmp_path: Path, case: str) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.py").write_text(PROGRAM.read_text())
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS.get(case)}")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "spotguard", "prove", "--json", "--steps", "8", "--tries", "1"),
            *("--jobs", "2", "--timeout", "150", "--", sys.executable),
            *(torchrun if case in RANKS else ()),
            *("train.py", case),
        ],
        cwd=tmp_path / "job",
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=390,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["verdict"], found["differences"]) == ("EXACT", [])
    assert {each["series"] for each in found["resumed"]} >= {"preempted", "killed"}
