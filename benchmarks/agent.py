"""What the agent costs while nothing happens: memory, and CPU, looking for each cloud's notices."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from .children import child
from .rows import Row
from .scale import Scale
from .watched import CLOUDS, Watched, wait_until_seeing

#: The command that `run` guards: it says a line, does nothing, and ends when its stdin does.
_IDLE = ("-c", "import sys; print(flush=True); sys.stdin.read()")


def measure(scale: Scale) -> Iterator[Row]:
    span = scale.of(scale.seconds, 1.0)
    with ExitStack() as stack:
        watched = {}
        for provider, cloud in CLOUDS.items():
            machine = stack.enter_context(Watched(scale.folder / provider, provider, *_IDLE))
            machine.start()
            machine.ready()
            watched[f"spotguard run, {cloud.name}"] = machine.pid
            # As a service it guards nothing, and has no supervisor.
            socket = scale.folder / f"{provider}.sock"
            words = ["-m", "spotguard", "agent", *machine.options(socket)]
            service = stack.enter_context(child(words, cwd=scale.folder))
            wait_until_seeing(socket)
            watched[f"spotguard agent, {cloud.name}"] = service.pid
        threading.Event().wait(scale.of(5.0, 1.0))  # of starting
        before, started = {pid: cpu_seconds(pid) for pid in watched.values()}, time.monotonic()
        threading.Event().wait(span)
        spent = time.monotonic() - started
        for name, pid in watched.items():
            used = (cpu_seconds(pid) - before[pid]) / spent * 100
            resident, proportional = memory(pid)
            yield Row(f"{name}: resident memory after {spent:.0f} s", "MiB", (resident,), figure=34.0)
            yield Row(f"{name}: its proportional share (PSS)", "MiB", (proportional,))
            yield Row(f"{name}: CPU, watching", "% of a core", (used,), figure=0.3)


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have run so far, to the nanosecond (proc/<pid>/stat counts in 10 ms)."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def memory(pid: int) -> tuple[float, float]:
    """RSS and PSS in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    facts = {name: int(rest.split()[0]) / 1024 for name, _, rest in (line.partition(":") for line in lines)}
    return facts["Rss"], facts["Pss"]
