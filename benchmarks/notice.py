"""From the notice being visible at AWS's endpoint to the hook being told, through the real agent.

Each notice has its own `spotguard run` over its own training script, several of them beside each other, and
its own place within the agent's poll interval.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from spotguard.providers.simulator.aws import AwsSimulator

from .children import child, line
from .rows import Row
from .scale import Scale

#: The terminal key is asked for once a second.
INTERVAL = 1.0
_KEY = "spot/instance-action"
_AT_ONCE = 4
#: Steps of 10 ms after which a script ends that nobody has told anything.
LONGEST = 12_000


def measure(scale: Scale) -> Iterator[Row]:
    count = scale.of(24, 1)
    seen, told = [], []
    for first in range(0, count, _AT_ONCE):
        notices = range(first, min(first + _AT_ONCE, count))
        with ExitStack() as stack:
            stories = [stack.enter_context(_Story(scale.folder / str(number))) for number in notices]
            for number, story in zip(notices, stories, strict=True):
                story.ready((number + 0.5) / count * INTERVAL)
            for story in stories:
                visible_to_read, read_to_told = story.play()
                seen.append(visible_to_read + read_to_told)
                told.append(read_to_told)
    in_ms = [tuple(value * 1e3 for value in values) for values in (seen, told)]
    figure = 1e3 * INTERVAL + 20
    yield Row("notice visible → hook told (polled every 1000 ms)", "ms", in_ms[0], figure=figure, worst=True)
    yield Row("  of which after the agent read it", "ms", in_ms[1], figure=20.0, worst=True)


class _Story:
    """One machine: its metadata service, its agent, and its training script."""

    def __init__(self, folder: Path) -> None:
        self._aws = AwsSimulator()
        self._folder = folder
        self._stack = ExitStack()
        self._after = 0.0

    def __enter__(self) -> _Story:
        self._folder.mkdir(mode=0o700)
        self._stack.enter_context(self._aws)
        words = ["-m", "spotguard", "run", "--provider", "aws", "--metadata-endpoint", self._aws.endpoint]
        words += ["--socket", str(self._folder / "agent.sock"), "--store", self._folder.as_uri()]
        words += ["--run-id", "notice", "--every", "off", "--", sys.executable, "-m", "benchmarks.notice"]
        self._script = self._stack.enter_context(child(words, cwd=self._folder, answers=True))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ready(self, after: float) -> None:
        """Wait until it trains and is watched. The notice is to come so long after a poll."""
        line(self._script)
        self._after = after
        if not self._aws.wait_for(2, path=_KEY, timeout=60):
            raise RuntimeError("spotguard run does not poll")

    def play(self) -> tuple[float, float]:
        """Seconds until the agent read the notice, and from then until the hook was told."""
        polled = self._aws.count(path=_KEY)
        self._aws.wait_for(polled + 1, path=_KEY)
        threading.Event().wait(self._after)
        visible = time.monotonic()
        self._aws.preempt(120.0)
        told = float(line(self._script))
        read = next(r.at for r in self._aws.requests if r.path.endswith(_KEY) and r.status == 200)
        # The command has a group of its own, which a kill of ours does not reach: it ends as it should.
        if self._script.wait(timeout=60) != 75:
            raise RuntimeError(f"spotguard run ended with {self._script.returncode}, not 75")
        return read - visible, told - read


# --- the training script, in the child ----------------------------------------------------------------------


class _Stamp(logging.Handler):
    """The hook's warning that a notice came is its first act on receiving it: CLOCK_MONOTONIC is one for all."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING and "left, saving" in record.getMessage():
            print(time.monotonic(), flush=True)


def train() -> None:
    import torch
    from torch import nn

    import spotguard

    logging.getLogger("spotguard").addHandler(_Stamp())
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
