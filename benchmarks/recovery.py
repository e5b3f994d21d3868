"""A rank hangs, or is killed: seconds until training goes on, and steps that are trained twice, beside torchelastic and NVRx.

All three have a restart, and a minute of patience: spotguard's least limit for a stall, the timeout of the process group's
collectives, and NVRx's limit for a heartbeat. The job is `recovering.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from . import peers
from .rows import Row
from .scale import Scale

#: The step in which the failure happens, as `recovering.py` has it.
AT = 170
_SCRIPT = str(Path(__file__).with_name("recovering.py"))
_LAUNCHED = ("--standalone", "--nproc-per-node=2", "--max-restarts=1")
_NVRX = (
    "--ft-rank-heartbeat-timeout=60",
    "--ft-initial-rank-heartbeat-timeout=120",
    "--ft-workload-check-interval=5",
)


def measure(scale: Scale) -> Iterator[Row]:
    for how in scale.of(("hang", "kill"), ("kill",)):
        for way in scale.of(("spotguard", "torchelastic", "nvrx"), ("spotguard",)):
            found = [
                _recovered(way, how, scale.folder / f"{how}-{way}-{number}")
                for number in range(scale.of(3, 1))
            ]
            yield Row(f"{how}, {way}: until training goes on", "s", tuple(seconds for seconds, _ in found))
            yield Row("  steps trained twice", "", tuple(float(steps) for _, steps in found))


def _recovered(way: str, how: str, folder: Path) -> tuple[float, int]:
    """Return the seconds from the failure to the first new step, and how many steps before the failure came again."""
    folder.mkdir()
    script = (_SCRIPT, way, str(folder), how)
    elastic = ("-m", "torch.distributed.run", *_LAUNCHED, *script)
    command = [sys.executable, *elastic]
    if way == "spotguard":
        options = (
            f"--provider none --run-id job --store {folder / 'store'} --every off --recover stall=restart"
        )
        command = [sys.executable, "-m", "spotguard", "run", *options.split(), "--", *command]
    elif way == "nvrx":
        launcher = ("-m", "nvidia_resiliency_ext.fault_tolerance.launcher", *_LAUNCHED, *_NVRX)
        command = [peers.python_of("nvrx"), *launcher, *script]
    with (folder / "log").open("wb") as log:
        done = subprocess.run(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_RUNTIME_DIR": str(folder)},
        )
    if done.returncode != 0:
        raise RuntimeError(f"{way} ended with {done.returncode}:\n{(folder / 'log').read_text()[-4000:]}")
    failed = float((folder / "failed").read_text())
    lines = [line.split() for line in (folder / "again").read_text().splitlines()]
    # The first step behind a restart. Rank 0 may have written some of its own before the failure of rank 1 reached it.
    at, begun = next((float(at), int(begun)) for at, begun, step in lines if int(step) == int(begun) > 0)
    return at - failed, AT - begun
