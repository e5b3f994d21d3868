"""`guard.step()` with nothing pending: the whole, and where it goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import spotguard
from spotguard.hooks.guard import Guard

from .environment import environment
from .resnet import ResNet50Shapes
from .rows import Row
from .scale import Scale
from .timing import microseconds


def measure(scale: Scale) -> Iterator[Row]:
    loops, times = scale.of((5000, 15), (20, 2))
    yield Row(
        "a Python call of nothing (what this core is worth)",
        "µs",
        microseconds(_nothing, loops=loops, times=times),
    )
    with guarded(nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]), scale.folder, "mlp") as guard:
        state = guard._state
        whole = microseconds(guard.step, loops=loops, times=times)
        parts = {part.name: microseconds(part.at_boundary, loops=loops, times=times) for part in state.parts}
        parts["witnesses"] = microseconds(state._detector.mark, loops=loops, times=times)
        optimizer, monitor = state._optimizers[0].optimizer, state.monitor

        def turn() -> None:
            monitor._on_step(optimizer, (), {})
            monitor.boundary()

        parts["step monitor, with its hook on one optimizer.step()"] = microseconds(
            turn, loops=loops, times=times
        )
        state.parts = tuple(part for part in state.parts if part.name != "rng")
        bare = microseconds(guard.step, loops=loops, times=times)
        loss = nn.Linear(4, 1)(torch.ones(4)).square().mean()
        losses = microseconds(lambda: guard.step(loss=loss), loops=loops, times=times)
    yield Row("guard.step(), MLP + AdamW, without RNG, buffers, loader", "µs", bare, figure=5.0)
    yield Row("guard.step(loss=…), the same with a loss, a tensor of the host", "µs", losses, figure=10.0)
    yield Row("guard.step(), the same with python, numpy and torch RNG", "µs", whole, figure=50.0)
    for name, values in parts.items():
        yield Row(f"  of which {name}", "µs", values)
    with guarded(ResNet50Shapes(), scale.folder, "resnet") as guard:
        state = guard._state
        yield Row(
            "guard.step(), ResNet-50: 161 parameters, 159 buffers, all RNG",
            "µs",
            microseconds(guard.step, loops=max(1, loops // 5), times=times),
            figure=150.0,
        )
        for name, call in (
            ("model's buffers", state.parts[0].at_boundary),
            ("witnesses", state._detector.mark),
        ):
            yield Row(f"  of which {name}", "µs", microseconds(call, loops=max(1, loops // 5), times=times))
    yield from _large_states(scale, max(1, loops // 5), times)


def _large_states(scale: Scale, loops: int, times: int) -> Iterator[Row]:
    """States with much to look at, and few bytes: what the look costs for each value, module and group."""
    notes = {"lr": [0.1] * 1000, **{f"key {i}": i for i in range(100)}}
    small = nn.Sequential(*[nn.Linear(8, 8) for _ in range(16)])
    groups = torch.optim.AdamW([{"params": small[2 * i : 2 * i + 2].parameters()} for i in range(8)])
    one_cycle = torch.optim.lr_scheduler.OneCycleLR(groups, max_lr=0.1, total_steps=10**7)
    many = nn.Sequential(*[nn.Linear(2, 2) for _ in range(1000)])
    for what, model, optimizer, others in (
        ("a layer, and a dict of 1,100 numbers", nn.Linear(64, 64), None, {"notes": notes}),
        ("1,000 modules", many, None, {}),
        ("8 parameter groups with OneCycleLR", small, groups, {"schedule": one_cycle}),
    ):
        run_id = f"{len(list(model.modules()))}"
        with guarded(model, scale.folder, run_id, optimizer=optimizer, **others) as guard:
            # The boundary alone: between steps of no length, copies soon cost too much to be made at each.
            boundary = microseconds(guard._state.at_boundary, loops=loops, times=times)
            yield Row(f"the copies of a boundary: {what}", "µs", boundary)


def _nothing() -> None:
    """The yardstick: cores differ by twice and more, and microseconds of Python with them."""


@contextmanager
def guarded(
    model: nn.Module,
    folder: Path,
    name: str,
    *,
    fused: bool = False,
    every: str = "off",
    optimizer: torch.optim.Optimizer | None = None,
    **others: Any,
) -> Iterator[Guard]:
    """A guard in the state that most of its life is: optimizer state made, all early boundaries behind it."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), fused=fused)
    # Without an agent, and without background checkpoints but those that are asked for: nothing is pending.
    with environment(SPOTGUARD_EVERY=every, SPOTGUARD_KEEP="2", SPOTGUARD_SOCKET=""):
        store = (folder / "store").as_uri()
        guard = spotguard.register(store, run_id=f"step-{name}", model=model, optimizer=optimizer, **others)
    try:
        guard.restore()
        for _ in range(6):
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            optimizer.zero_grad()
            guard.step()
        yield guard
    finally:
        guard.close()
