"""A spot machine's day in three minutes, before a Prometheus: guarded, blind, drilled, preempted, and started again.

Everything is real but the cloud: the service agent, the run, torch, the store in a folder, Prometheus with the shipped
rules. What it recorded is what the charts of docs/reference/metrics.md are drawn from, and what a soak test asks.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from spotguard.agent.ipc import control
from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.e2e.promql import free_port
from tests.servers.prometheus import Prometheus

from .children import child

RUN_ID = "gpt-small-7"

#: Some 24 MiB of state, and a step every tenth of a second. It ends with whoever guards it.
TRAIN = """
import os, threading, torch, spotguard
torch.set_num_threads(1)
model = torch.nn.Linear(1024, 2048)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
guard, pause, guardian = spotguard.register(model=model, optimizer=optimizer), threading.Event(), os.getppid()
for step in guard.steps(10**9):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 1024)).square().mean()
    loss.backward()
    optimizer.step()
    guard.watch_loss(loss)
    guard.watch_metric("validation_loss", loss)
    pause.wait(0.1)
    if os.getppid() != guardian:
        break
"""

#: Seconds of each part.
CALM, DARK, AFTER = 30.0, 75.0, 20.0
WARNING = 40.0
TIMEOUT = 120.0


@contextmanager
def played(
    folder: Path, program: str, tell: Callable[[str], None] = print
) -> Iterator[tuple[Prometheus, float]]:
    """The Prometheus that saw all of it, and the Unix time at which it began."""
    with ExitStack() as stack:
        ports = {name: stack.enter_context(free_port()) for name in ("node-1", RUN_ID)}
        prometheus = stack.enter_context(Prometheus(program, ports))
        aws = stack.enter_context(AwsSimulator())
        watch = ["--provider", "aws", "--metadata-endpoint", aws.endpoint]
        service, socket = folder / "service.sock", folder / "run.sock"
        agent = ["agent", *watch, "--socket", str(service), "--metrics-port", str(ports["node-1"])]
        stack.enter_context(child(["-m", "spotguard", *agent], cwd=folder))
        run = ["run", *watch, "--socket", str(socket), "--metrics-port", str(ports[RUN_ID])]
        run += [
            "--run-id",
            RUN_ID,
            "--store",
            (folder / "store").as_uri(),
            "--every",
            "10",
            "--on-failure",
            "true",
        ]
        words = ["-m", "spotguard", *run, "--", sys.executable, "-c", TRAIN]
        began = time.time()
        first = stack.enter_context(child(words, cwd=folder))
        tell("training")
        _until(lambda: prometheus.query("spotguard_checkpoint_step > 0"), "the first checkpoint")
        _pause(CALM)
        tell("blind")
        aws.fault("hop-limit", seconds=DARK)
        aws.expire_tokens()  # the ones in hand would do for hours
        _pause(DARK + AFTER)
        tell("a drill")
        for _ in control.drill(socket, window=60.0):
            pass
        _pause(AFTER)
        tell("preempted")
        aws.preempt(WARNING)
        if (code := first.wait(TIMEOUT)) != 75:
            raise RuntimeError(f"spotguard run ended with {code}, not 75")
        tell("started again on the machine that goes")
        second = stack.enter_context(child(words, cwd=folder))
        committed = f'spotguard_outcomes_total{{instance="{RUN_ID}",result="committed",drill="false"}} == 1'
        _until(lambda: prometheus.query(committed), "the outcome in the second run")
        if (code := second.wait(TIMEOUT)) != 75:
            raise RuntimeError(f"spotguard run ended with {code}, not 75")
        tell("gone")
        yield prometheus, began


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def _until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + TIMEOUT
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"{what} never came")
        _pause(0.2)
