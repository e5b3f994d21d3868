"""A training on the GPU: `exact.py CASE`. Each case is one way to train there that orders kernels differently."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spotguard

WIDTH, BATCH = 256, 32
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def perceptron(*, size: int = WIDTH, drop: float = 0.2) -> nn.Module:
    layers = [nn.Sequential(nn.Linear(size, size), nn.GELU(), nn.Dropout(drop)) for _ in range(4)]
    return nn.Sequential(*layers, nn.Linear(size, 1)).to(DEVICE)


def random_batch() -> torch.Tensor:
    return torch.randn(BATCH, WIDTH, device=DEVICE)


def loss_of(model: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (model(x).squeeze(-1) - x.sum(1)).square().mean()
    return loss


def plain(steps: int) -> None:
    """AdamW by `foreach`, dropout from the device's generator, batches from pinned memory."""
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(20 * BATCH, WIDTH))
    loader = spotguard.ResumableLoader(DataLoader(data, BATCH, shuffle=True, pin_memory=DEVICE == "cuda"))
    guard = spotguard.register(model=model, optimizer=optimizer, loader=loader)
    done = guard.restore()
    while done < steps:
        for (x,) in loader:
            optimizer.zero_grad()
            loss = loss_of(model, x.to(DEVICE, non_blocking=True))
            loss.backward()
            optimizer.step()
            guard.step(loss=loss)
            done += 1


def fused(steps: int) -> None:
    """A fused optimizer, bfloat16 by autocast, clipping, a schedule."""
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    guard = spotguard.register(model=model, optimizer=optimizer, schedule=schedule)
    for _ in guard.steps(steps):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = loss_of(model, random_batch())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def scaled(steps: int, *, fused: bool = False) -> None:
    """float16 with a gradient scaler, which skips steps while its scale is too large."""
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**24, growth_interval=4)
    guard = spotguard.register(model=model, optimizer=optimizer, scaler=scaler)
    dtype = torch.float16 if DEVICE == "cuda" else torch.bfloat16
    for _ in guard.steps(steps):
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype):
            loss = loss_of(model, random_batch())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def images(steps: int) -> None:
    """Convolutions in channels_last with BatchNorm's buffers, and SGD with momentum."""
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    model = model.to(DEVICE).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    guard = spotguard.register(model=model, optimizer=optimizer)
    for _ in guard.steps(steps):
        x = torch.randn(8, 3, 32, 32, device=DEVICE).contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), torch.arange(8, device=DEVICE) % 10).backward()
        optimizer.step()


def averaged(steps: int) -> None:
    """An exponential average of the weights, and a generator of the script's own on the device."""
    model = perceptron(drop=0.0)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator(DEVICE).manual_seed(7)

    class Draws:
        def state_dict(self) -> dict[str, Any]:
            return {"state": generator.get_state()}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            generator.set_state(state["state"])

    guard = spotguard.register(model=model, optimizer=optimizer, average=average, draws=Draws())
    for _ in guard.steps(steps):
        optimizer.zero_grad()
        loss_of(model, torch.randn(BATCH, WIDTH, device=DEVICE, generator=generator)).backward()
        optimizer.step()
        average.update_parameters(model)


def aside(steps: int) -> None:
    """The whole training on a stream that is not the default one."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        fused(steps)
    torch.cuda.current_stream().wait_stream(stream)


def compiled(steps: int, mode: str = "default") -> None:
    """A compiled model; with "reduce-overhead" its kernels are CUDA graphs."""
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    guard = spotguard.register(model=model, optimizer=optimizer)
    run = torch.compile(model, mode=mode)
    for _ in guard.steps(steps):
        optimizer.zero_grad()
        torch.compiler.cudagraph_mark_step_begin()
        loss_of(run, random_batch()).backward()
        optimizer.step()


def graph(steps: int) -> None:
    """The whole step in one CUDA graph, the optimizer's too: no hook of Python runs when it is replayed."""
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    guard = spotguard.register(model=model, optimizer=optimizer)
    x = torch.zeros(BATCH, WIDTH, device=DEVICE)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(model, x).backward()
        optimizer.step()

    replay: Any = None
    for turn, _ in enumerate(guard.steps(steps)):
        x.copy_(random_batch())
        if turn < 3:  # torch's way: each process takes some steps before the capture, on another stream
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                step()
            torch.cuda.current_stream().wait_stream(aside)
            continue
        if replay is None:
            replay = torch.cuda.CUDAGraph()
            optimizer.zero_grad(set_to_none=True)
            with torch.cuda.graph(replay):
                loss_of(model, x).backward()
                optimizer.step()
        replay.replay()


def attention(steps: int) -> None:
    """A transformer's layers, recomputed in backward, with gradients accumulated over two batches."""
    from torch.utils.checkpoint import checkpoint

    layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.1, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    guard = spotguard.register(model=model, optimizer=optimizer)
    for _ in guard.steps(steps):
        optimizer.zero_grad()
        for _ in range(2):
            x = torch.randn(4, 64, WIDTH, device=DEVICE, requires_grad=True)
            for each in model.layers:
                x = checkpoint(each, x, use_reentrant=False)
            x.square().mean().backward()
        optimizer.step()


def of_several(model: nn.Module, steps: int) -> None:
    """The loop of a job of ranks."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    guard = spotguard.register(model=model, optimizer=optimizer)
    for _ in guard.steps(steps):
        optimizer.zero_grad()
        loss_of(model, random_batch()).backward()
        optimizer.step()
    guard.close()
    torch.distributed.destroy_process_group()


def sharded(steps: int, *, offload: bool = False) -> None:
    """FSDP2 over NCCL: `torchrun` starts it."""
    import torch.distributed as dist
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

    dist.init_process_group("cpu:gloo,cuda:nccl" if DEVICE == "cuda" else "gloo")
    model = perceptron()
    policy = CPUOffloadPolicy() if offload else OffloadPolicy()
    for each in model.children():
        fully_shard(each, offload_policy=policy)
    fully_shard(model, offload_policy=policy)
    of_several(model, steps)


def replicated(steps: int) -> None:
    """DDP: two ranks that share the GPU, over Gloo, because NCCL takes one rank for each GPU."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(perceptron())
    of_several(model, steps)


CASES: dict[str, Callable[[int], None]] = {
    "plain": plain,
    "fused": fused,
    "scaled": scaled,
    "scaled-fused": lambda steps: scaled(steps, fused=True),
    "images": images,
    "averaged": averaged,
    "aside": aside,
    "compiled": compiled,
    "reduce-overhead": lambda steps: compiled(steps, "reduce-overhead"),
    "graph": graph,
    "attention": attention,
    "sharded": sharded,
    "offloaded": lambda steps: sharded(steps, offload=True),
    "replicated": replicated,
}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(0)
    CASES[sys.argv[1]](int(*sys.argv[2:]) if sys.argv[2:] else 1000)
