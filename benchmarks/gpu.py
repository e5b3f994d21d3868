"""A GPU: what `guard.step()` and background checkpoints cost training there, and how fast its memory is saved and restored.

Peers save and load the same state. The ceiling of a save is the copy of the same bytes into pinned memory, by one call.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from spotguard.hooks.guard import Guard

from .rate import Found, rate_rows, run_way
from .resnet import ResNet50Shapes
from .rows import Row, Unable
from .scale import Scale
from .step import guarded
from .timing import microseconds

SAVES = ("spotguard", "torch.save", "DCP", "DCP, 2 threads")
LOADS = {"spotguard": "spotguard", "torch.load": "torch.save", "DCP": "DCP"}


def measure(scale: Scale) -> Iterator[Row]:
    if not torch.cuda.is_available():
        raise Unable("no GPU is here")
    print(f"# {torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    yield from _boundaries(scale)
    yield from _training(scale)
    yield from _rates(scale)


def _boundaries(scale: Scale) -> Iterator[Row]:
    """The host's time alone: the GPU has nothing else to do, so no launch waits in a full queue."""
    loops, times = scale.of((500, 9), (20, 2))

    def boundary() -> None:
        guard._state._stepped = True  # as behind an optimizer's step
        guard.step()

    for name, model, figure in (
        ("MLP", nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]), 150.0),
        ("ResNet-50: 161 parameters, 159 buffers", ResNet50Shapes(), 500.0),
    ):
        model.cuda()
        with _guarded(f"step-{name[:3]}", model) as (guard, _):
            spent = microseconds(boundary, loops=loops, times=times)
        yield Row(f"guard.step() on a GPU, {name}, AdamW, all RNG", "µs", spent, figure=figure)


def _training(scale: Scale) -> Iterator[Row]:
    """A transformer of 300 M parameters in bfloat16: plain, with boundaries, and with a checkpoint beside it, in turn."""
    layers, steps, times = scale.of((24, 40, 5), (2, 3, 1))
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).cuda()
    with _guarded("training", model) as (guard, optimizer):
        x = torch.randn(8, 512, 1024, device="cuda")

        def train(boundary: Callable[[], object]) -> None:
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            boundary()

        def spend(count: int, boundary: Callable[[], object]) -> float:
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(count):
                train(boundary)
            torch.cuda.synchronize()
            return time.perf_counter() - started

        def beside() -> tuple[int, float]:
            """Steps and seconds from the begin of a background checkpoint to its commit."""
            count, before = 0, guard._checkpointer.last
            torch.cuda.synchronize()
            started, guard._schedule.due = time.perf_counter(), 0.0
            while guard._checkpointer.last is before:
                train(guard.step)
                count += 1
            torch.cuda.synchronize()
            return count, time.perf_counter() - started

        spend(200, guard.step)  # behind the early boundaries, which are audited more
        beside()
        plain, marked, lost, lasted = [], [], [], []
        for _ in range(times):
            plain.append(spend(steps, lambda: None) / steps)
            guard.step()
            marked.append(spend(steps, guard.step) / steps)
            count, seconds = beside()
            lasted.append(seconds)
            lost.append(seconds - spend(count, guard.step))
        nbytes = 3 * sum(p.nbytes for p in model.parameters())
    yield Row(f"a step of {nbytes / 12e6:.0f} M parameters, plain", "ms", tuple(each * 1e3 for each in plain))
    yield Row(
        "  the same with guard.step()",
        "ms",
        tuple(each * 1e3 for each in marked),
        peer=sorted(plain)[len(plain) // 2] * 1e3,
        peer_name="plain",
    )
    yield Row(
        f"training time that a background checkpoint of {nbytes / 1e9:.1f} GB costs",
        "ms",
        tuple(each * 1e3 for each in lost),
    )
    yield Row("  it is committed after", "s", tuple(lasted))


def _rates(scale: Scale) -> Iterator[Row]:
    mib, rounds, times = scale.of((3072, 1, 2), (48, 1, 1))
    source = torch.ones(min(mib, 4096) * 2**20, dtype=torch.uint8, device="cuda")
    target = torch.empty(source.shape, dtype=torch.uint8, pin_memory=True)
    copies = []
    for _ in range(4):
        started = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize()
        copies.append(source.numel() / (time.perf_counter() - started) / 1e9)
    del source, target
    yield Row("the GPU's memory into pinned memory, by one call", "GB/s", tuple(copies[1:]))
    saved: Found = {way: [] for way in SAVES}
    loaded: Found = {way: [] for way in LOADS}
    for _ in range(rounds):
        for way in SAVES:
            with tempfile.TemporaryDirectory(prefix="sg-gpu-", dir="/dev/shm") as folder:
                saved[way] += run_way("save", way, Path(folder), mib, times, "cuda")
                for by in (by for by, wrote in LOADS.items() if wrote == way):
                    loaded[by] += run_way("load", by, Path(folder), mib, 1, "cuda")
    yield from rate_rows("save a GPU's state in memory (tmpfs)", saved, list(SAVES[1:]))
    yield from rate_rows("restore it", loaded, ["torch.load", "DCP"])


@contextmanager
def _guarded(run_id: str, model: nn.Module) -> Iterator[tuple[Guard, torch.optim.Optimizer]]:
    """A guard whose background checkpoints are those that are asked for, to memory, and the optimizer that it found."""
    with (
        tempfile.TemporaryDirectory(prefix="sg-gpu-", dir="/dev/shm") as folder,
        guarded(model, Path(folder), run_id, fused=True, every="3600") as guard,
    ):
        yield guard, guard._state._optimizers[0].optimizer
