"""A job of two ranks whose rank 1 hangs or is killed at a step: `recovering.py spotguard|torchelastic|nvrx FOLDER hang|kill`.

The step takes 50 ms. Without spotguard, the script saves by itself every 100 steps, and its collectives time out after a minute.
"""

from __future__ import annotations

import datetime
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

AT, BEHIND, EVERY, STEP = 170, 5, 100, 0.05  # AT as in `recovery.py`
#: Seconds until a collective without progress ends, and until NVRx's monitor ends a rank without a heartbeat.
LIMIT = 60.0

way, folder, how = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=1800.0 if way == "spotguard" else LIMIT))
rank = dist.get_rank()


class Layer(nn.Linear):
    """A layer in whose forward the failure happens, once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if failing:
            failing.clear()
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()
        return super().forward(x)


failing: list[int] = []
model = DistributedDataParallel(Layer(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
kept = folder / "checkpoint.pt"


def train(step: int) -> None:
    mark = folder / "failed"
    time.sleep(STEP)
    if rank == 1 and step == AT and not mark.exists():
        mark.write_text(str(time.monotonic()))
        failing.append(step)
    optimizer.zero_grad()
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()


def say(step: int, begun: int) -> None:
    if rank == 0 and (folder / "failed").exists():
        with (folder / "again").open("a") as file:
            file.write(f"{time.monotonic()} {begun} {step}\n")


if way == "spotguard":
    import spotguard

    guard = spotguard.register(model=model, optimizer=optimizer)
    begun = guard.restore()
    for step in guard.steps(AT + BEHIND):
        train(step)
        say(step, begun)
else:
    client = None
    if way == "nvrx":
        from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient  # type: ignore[import-not-found]

        client = RankMonitorClient()
        client.init_workload_monitoring()
    begun = 0
    if kept.exists():
        loaded = torch.load(kept)
        begun = loaded["step"]
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
    for step in range(begun, AT + BEHIND):
        train(step)
        say(step, begun)
        if client is not None:
            client.send_heartbeat()
        if (step + 1) % EVERY == 0 and rank == 0:
            state = {"step": step + 1, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, kept.with_suffix(".new"))
            kept.with_suffix(".new").rename(kept)
dist.destroy_process_group()
