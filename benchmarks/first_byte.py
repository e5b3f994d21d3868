"""From the hook being told to the first put of its save, while a step of 20 s is under way.

The notice is a drill, so that one process is measured many times; every step is cut short when its save has
committed. The benchmark plays the agent: the hook dates `told` and `first-byte` itself.
"""

from __future__ import annotations

import itertools
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from spotguard.hooks.ipc import protocol

from .agent_end import AgentEnd
from .children import child, line
from .rows import Row
from .scale import Scale

STEP = 20.0
#: What the training thread does all step long -> how a reader is told.
LIVES = {
    "sleep": "asleep in a system call (a stuck loader)",
    "torch": "in torch's matrix products (both cores busy)",
    "python": "in pure Python, giving the GIL away every 5 ms",
}


def measure(scale: Scale) -> Iterator[Row]:
    mib, times = scale.of((256, 7), (1, 1))
    lives = scale.of(list(LIVES), ["torch"])
    for life in lives:
        folder = scale.folder / life
        folder.mkdir(mode=0o700)
        waits = _waits(folder, life, mib, times)
        yield Row(f"hook told → first byte, main thread {LIVES[life]}", "ms", tuple(waits), figure=100.0)


def _waits(folder: Path, life: str, mib: int, times: int) -> list[float]:
    waits = []
    socket = folder / "agent.sock"
    words = ["-m", "benchmarks.first_byte", life, str(mib), str(folder)]
    with (
        AgentEnd(socket) as agent,
        child(words, cwd=folder, answers=True, SPOTGUARD_SOCKET=str(socket), SPOTGUARD_EVERY="off") as script,
    ):
        for number in range(times):
            while line(script) != f"in step {number}":
                pass
            id = f"drill-{number}"
            agent.say(protocol.Preempt(id, 120.0, 5.0, "terminate", "benchmark", drill=True))
            told = agent.hear(lambda m: isinstance(m, protocol.Delivered))
            first = agent.hear(lambda m: isinstance(m, protocol.Progress) and m.phase == "first-byte")
            agent.hear(lambda m: isinstance(m, protocol.Committed))
            assert isinstance(told, protocol.Delivered)
            assert isinstance(first, protocol.Progress)
            waits.append((first.monotonic - told.monotonic) * 1e3)
            agent.say(protocol.Resume(id))
            assert script.stdin is not None
            script.stdin.write("\n")
            script.stdin.flush()
    return waits


# --- the training script, in the child ----------------------------------------------------------------------


def train(life: str, mib: int, folder: Path) -> None:
    import torch
    from torch import nn

    import spotguard

    torch.set_num_threads(os.cpu_count() or 1)
    model = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(max(1, mib // 3)))
    optimizer = torch.optim.AdamW(model.parameters())
    guard = spotguard.register(folder.as_uri(), run_id="first-byte", model=model, optimizer=optimizer)
    guard.restore()
    os.set_blocking(sys.stdin.fileno(), False)
    square = torch.randn(1024, 1024)
    ways: dict[str, Callable[[], object]] = {
        "sleep": _wait_for_a_word,
        "torch": lambda: torch.mm(square, square),
        "python": lambda: sum(range(100_000)),
    }
    for number in itertools.count():
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        guard.step()
        print(f"in step {number}", flush=True)
        end = time.monotonic() + STEP
        while time.monotonic() < end and not _told():
            ways[life]()


def _wait_for_a_word() -> None:
    select.select([sys.stdin], [], [], STEP)


def _told() -> bytes:
    """What has been said to us: b"" for nothing yet."""
    try:
        return os.read(sys.stdin.fileno(), 100)
    except BlockingIOError:
        return b""


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
