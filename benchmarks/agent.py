"""What the agent costs while nothing happens: memory, and CPU, polling AWS's key once a second."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from spotguard.providers.simulator.aws import AwsSimulator

from .children import child
from .rows import Row
from .scale import Scale

#: The command that `run` guards: it does nothing, and ends when its stdin does.
_IDLE = ("-c", "import sys; sys.stdin.read()")
_KEY = "instance-action"


def measure(scale: Scale) -> Iterator[Row]:
    span = scale.of(scale.seconds, 1.0)
    with ExitStack() as stack:
        watched = {}
        for name in ("run", "agent"):
            aws = stack.enter_context(AwsSimulator())
            folder = scale.folder / name
            folder.mkdir(mode=0o700)
            process = stack.enter_context(child(_command(name, aws.endpoint, folder), cwd=folder))
            if not aws.wait_for(scale.of(5, 1), path=_KEY, timeout=60):
                raise RuntimeError(f"spotguard {name} does not poll {aws.endpoint}")
            watched[f"spotguard {name}"] = process.pid
        before, started = {pid: cpu_seconds(pid) for pid in watched.values()}, time.monotonic()
        threading.Event().wait(span)
        spent = time.monotonic() - started
        for name, pid in watched.items():
            used = (cpu_seconds(pid) - before[pid]) / spent * 100
            resident, proportional = memory(pid)
            yield Row(f"{name}: resident memory after {spent:.0f} s", "MiB", (resident,), figure=34.0)
            yield Row(f"{name}: its proportional share (PSS)", "MiB", (proportional,))
            yield Row(f"{name}: CPU, polling every second", "% of a core", (used,), figure=0.3)


def _command(name: str, endpoint: str, folder: Path) -> Sequence[str]:
    ours = ["-m", "spotguard", name, "--provider", "aws", "--metadata-endpoint", endpoint]
    ours += ["--socket", str(folder / "agent.sock")]
    if name == "agent":
        return ours
    return [*ours, "--store", folder.as_uri(), "--run-id", "idle", "--", sys.executable, *_IDLE]


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have run so far, to the nanosecond (proc/<pid>/stat counts in 10 ms)."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def memory(pid: int) -> tuple[float, float]:
    """RSS and PSS in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    facts = {name: int(rest.split()[0]) / 1024 for name, _, rest in (line.partition(":") for line in lines)}
    return facts["Rss"], facts["Pss"]
