"""A rank hangs, or is killed: seconds until it is named and training goes on, and steps that are trained twice, beside others.

The others are torchelastic and NVRx. All three have a restart, and a minute of patience: spotguard's least limit for a stall, the
timeout of the process group's collectives, and NVRx's limit for a heartbeat. The job is `recovering.py`.

RECOVERY="kill torchelastic nvrx" in the environment names failures and ways. TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 has the launchers
give the ranks of each start a store of their own, as spotguard has torchrun do.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
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

#: The words with which each itself names a failure first. The script's own traceback, which is torch's, counts for none.
_NAMES = {
    "spotguard": r"training failed|training stands still",
    "torchelastic": r"failed \(exitcode: ",
    "nvrx": r"failed \(exitcode: |Did not get subsequent heartbeat",
}
#: Seconds after which a job that has not ended is killed.
_LIMIT = 300.0


@dataclass(frozen=True, slots=True)
class _Recovery:
    """Seconds from the failure to its name and to the first new step, if they came, and the steps that were trained again."""

    named: float | None
    again: float | None = None
    twice: int = 0


def measure(scale: Scale) -> Iterator[Row]:
    times = scale.of(3, 1)
    ways = _chosen("spotguard", "torchelastic", "nvrx")
    for how in scale.of(_chosen("hang", "kill"), ["kill"]):
        for way in scale.of(ways, ["spotguard"]):
            tries = [_recovered(way, how, scale.folder / f"{how}-{way}-{number}") for number in range(times)]
            named = tuple(each.named for each in tries if each.named is not None)
            yield Row(
                f"{how}, {way}: until the failure is named, {len(named)} of {times}", "s", named or (0.0,)
            )
            if again := {each.again: float(each.twice) for each in tries if each.again is not None}:
                yield Row(f"  until training goes on, {len(again)} of {times}", "s", tuple(again))
                yield Row("  steps trained twice", "", tuple(again.values()))


def _chosen(*names: str) -> list[str]:
    return [each for each in names if each in os.environ.get("RECOVERY", "").split()] or [*names]


def _recovered(way: str, how: str, folder: Path) -> _Recovery:
    """Return what became of one failure."""
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
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_RUNTIME_DIR": str(folder)},
    ) as process:
        limit = threading.Timer(_LIMIT, process.terminate)  # a launcher ends its ranks
        limit.start()
        assert process.stdout is not None
        log = [(time.monotonic(), line) for line in process.stdout]
        limit.cancel()
    failed = float((folder / "failed").read_text())
    named = next((at - failed for at, line in log if at > failed and re.search(_NAMES[way], line)), None)
    if process.returncode != 0:
        end = "".join(line for _, line in log[-20:])
        print(f"  {how}, {way}: training did not go on, exit code {process.returncode}:\n{end}", flush=True)
        return _Recovery(named)
    lines = [line.split() for line in (folder / "again").read_text().splitlines()]
    # The first step behind a restart. Rank 0 may have written some of its own before the failure of rank 1 reached it.
    again, begun = next((float(at), int(begun)) for at, begun, step in lines if int(step) == int(begun))
    return _Recovery(named, again - failed, AT - begun)
