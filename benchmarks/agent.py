"""The cost of an agent while nothing happens: memory, and CPU, looking for each cloud's notices.

It is measured bare, with metrics, with alerts, and with all at once: two agents, of which each guards a rank of one job in training.
"""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from spotguard.agent.ipc import control
from tests.e2e.promql import free_port

from .children import child
from .rows import Row
from .scale import Scale
from .watched import CLOUDS, Watched, wait_until_seeing

#: The command that `run` guards: it says a line, does nothing, and ends when its stdin does.
_IDLE = ("-c", "import sys; print(flush=True); sys.stdin.read()")
#: A rank of a job on two machines, which trains until its stdin ends: some ten steps a second, with a loss.
_RANK = """
import os, sys, threading, time, torch, spotguard
from torch.nn.parallel import DistributedDataParallel
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
os.environ |= {"RANK": sys.argv[1], "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[2]}
torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
guard = spotguard.register(model=model, optimizer=optimizer)
guard.restore()
print(flush=True)
while True:
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    guard.step(loss=loss)
    time.sleep(0.1)
"""
#: Those that are scraped, and how often: as in the scrape that is shipped.
WITH_METRICS, WITH_ALERTS, _BARE = " with metrics", " with alerts", "without"
#: Heartbeats with the other machine, a rank that trains, and alerts.
WITH_ALL = " with heartbeats, training, alerts"
SCRAPED_EVERY = 10.0
#: The helper's own rows.
HELPER = "the helper of alerts"


def measure(scale: Scale) -> Iterator[Row]:
    span = scale.of(scale.seconds, 1.0)
    with ExitStack() as stack:
        watched: dict[str, int] = {}
        ports: list[int] = []
        for provider, cloud in CLOUDS.items():
            for way in ("", WITH_METRICS):
                ports += [stack.enter_context(free_port()) for _ in range(2 if way else 0)]
                run, agent = ([f"--metrics-port={port}"] for port in ports[-2:]) if way else ([], [])
                folder = scale.folder / f"{provider}{way.replace(' ', '-')}"
                machine = stack.enter_context(Watched(folder, provider, *_IDLE, more=run))
                machine.start()
                machine.ready()
                watched[f"spotguard run{way}, {cloud.name}"] = machine.pid
                # As a service it guards nothing, and has no supervisor.
                socket = folder / "service.sock"
                words = ["-m", "spotguard", "agent", *machine.options(socket), *agent]
                service = stack.enter_context(child(words, cwd=scale.folder))
                wait_until_seeing(socket)
                watched[f"spotguard agent{way}, {cloud.name}"] = service.pid
        # With a webhook, the helper has its HTTP client; nobody listens there, and nothing fires.
        options = ["--webhook", "http://127.0.0.1:9/", "--on-failure", "true"]
        machine = stack.enter_context(Watched(scale.folder / "alerts", "aws", *_IDLE, more=options))
        machine.start()
        machine.ready()
        watched[f"spotguard run{WITH_ALERTS}, {CLOUDS['aws'].name}"] = machine.pid
        watched[HELPER] = control.status(scale.folder / "alerts" / "agent.sock")["alerts"]["pid"]
        job = stack.enter_context(free_port())
        ports.append(stack.enter_context(free_port()))
        ranks = []
        for rank, way in enumerate((WITH_ALL, WITH_ALL + WITH_METRICS)):
            more = [*options, *([f"--metrics-port={ports[-1]}"] if way.endswith(WITH_METRICS) else [])]
            folder, store = scale.folder / f"job-{rank}", scale.folder / "job"
            command = ("-c", _RANK, str(rank), str(job))
            machine = stack.enter_context(Watched(folder, "aws", *command, more=more, store=store))
            machine.start()
            ranks.append(machine)
            watched[f"spotguard run{way}, {CLOUDS['aws'].name}"] = machine.pid
        for machine in ranks:
            machine.ready()
        _watch(scale.of(5.0, 1.0), ports)  # of starting
        before, started = {pid: cpu_seconds(pid) for pid in watched.values()}, time.monotonic()
        _watch(span, ports)
        spent = time.monotonic() - started
        found = {
            name: (*memory(pid), (cpu_seconds(pid) - before[pid]) / spent * 100)
            for name, pid in watched.items()
        }
        for name, (resident, proportional, cpu) in found.items():
            if name == HELPER:
                yield Row(f"{name}: resident memory after {spent:.0f} s", "MiB", (resident,), figure=48.0)
                yield Row(f"{name}: its proportional share (PSS)", "MiB", (proportional,))
                yield Row(f"{name}: CPU", "% of a core", (cpu,), figure=0.5)
                continue
            bare = name.replace(WITH_ALL, "").replace(WITH_METRICS, "").replace(WITH_ALERTS, "")
            rss, pss, without = found[bare] if bare != name else (None, None, None)
            figure = 38.0 if WITH_METRICS in name else 34.0
            what = f"{name}: resident memory after {spent:.0f} s"
            yield Row(what, "MiB", (resident,), figure=figure, peer=rss, peer_name=_BARE)
            what = f"{name}: its proportional share (PSS)"
            yield Row(what, "MiB", (proportional,), peer=pss, peer_name=_BARE)
            what = f"{name}: CPU, watching"
            # The figure is that of an agent to which nothing happens.
            quiet = None if WITH_ALL in name else 0.3
            yield Row(what, "% of a core", (cpu,), figure=quiet, peer=without, peer_name=_BARE)


def _watch(seconds: float, ports: Sequence[int]) -> None:
    """Let so much time go by, with a scrape of each every so often, as Prometheus does it."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        for port in ports:
            _scrape(port)
        threading.Event().wait(min(SCRAPED_EVERY, max(0.0, left)))


def _scrape(port: int) -> None:
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics",
        headers={
            # What Prometheus 2.42 sends.
            "Accept": "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "Accept-Encoding": "gzip",
        },
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=30) as answer:
        answer.read()


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have run so far, to the nanosecond (proc/<pid>/stat counts in 10 ms)."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def memory(pid: int) -> tuple[float, float]:
    """RSS and PSS in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    facts = {name: int(rest.split()[0]) / 1024 for name, _, rest in (line.partition(":") for line in lines)}
    return facts["Rss"], facts["Pss"]
