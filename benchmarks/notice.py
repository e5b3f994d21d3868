"""From the notice being visible at the cloud's endpoint to the hook being told, through the real agent.

Each notice has its own `spotguard run` over its own training script, several of them beside each other, and
its own place within the agent's poll interval.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

from .rows import Row
from .scale import Scale
from .watched import CLOUDS, Watched

_AT_ONCE = 4
#: Steps of 10 ms after which a script ends that nobody has told anything.
LONGEST = 12_000


def measure(scale: Scale) -> Iterator[Row]:
    count = scale.of(24, 1)
    for provider, cloud in CLOUDS.items():
        seen, read = [], []
        for first in range(0, count, _AT_ONCE):
            notices = range(first, min(first + _AT_ONCE, count))
            for visible_to_read, read_to_told in _together(scale, provider, notices, count):
                seen.append((visible_to_read + read_to_told) * 1e3)
                read.append(read_to_told * 1e3)
        how = f"polled every {cloud.interval * 1e3:.0f} ms" if cloud.interval else "a hanging GET"
        what = f"notice visible → hook told, {cloud.name} ({how})"
        yield Row(what, "ms", tuple(seen), figure=cloud.figure, worst=True)
        yield Row("  of which after the agent read it", "ms", tuple(read), figure=20.0, worst=True)


def _together(scale: Scale, provider: str, notices: range, count: int) -> Iterator[tuple[float, float]]:
    """For each notice, seconds until the agent read it, and from then until the hook was told."""
    command = ("-m", "benchmarks.notice")
    with ExitStack() as stack:
        folders = [scale.folder / f"{provider}-{number}" for number in notices]
        machines = [stack.enter_context(Watched(folder, provider, *command)) for folder in folders]
        for machine in machines:
            machine.start()
        for machine in machines:
            machine.ready()
        for number, machine in zip(notices, machines, strict=True):
            yield _play(machine, (number + 0.5) / count)


def _play(machine: Watched, place: float) -> tuple[float, float]:
    machine.pass_after_look(place * machine.cloud.interval)
    visible = time.monotonic()
    machine.simulator.preempt()
    told = float(machine.line())
    read = machine.read_at(visible)
    machine.end()
    return read - visible, told - read


# --- the training script, in the child ----------------------------------------------------------------------


class _Stamp(logging.Handler):
    """The hook's line that a notice came is its first act on receiving it: CLOCK_MONOTONIC is one for all."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.INFO and "left, saving" in record.getMessage():
            print(time.monotonic(), flush=True)


def train() -> None:
    import torch
    from torch import nn

    import spotguard

    log = logging.getLogger("spotguard")
    log.addHandler(_Stamp())
    log.setLevel(logging.INFO)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    guard = spotguard.register(model=model, optimizer=optimizer)
    guard.restore()
    pace = threading.Event()  # never set: a step as long as one on a device, where the host has little to do
    for step in range(LONGEST):
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()
        guard.step()
        if step == 3:
            print("training", flush=True)
        pace.wait(0.01)


if __name__ == "__main__":
    train()
