"""A job of two ranks in one process: a guard for each, on a thread of its own, as far apart as two machines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

from spotguard.hooks.consensus.channel import Channel
from spotguard.hooks.control.ending import sigterm
from spotguard.hooks.guard import Guard
from spotguard.providers.clock import Clock, SystemClock
from spotguard.providers.stores.base import BlobStore
from tests.fakes.noticed import Heard

T = TypeVar("T")

#: Seconds after which a wait between threads counts as a hang.
PATIENCE = 100.0
WORLD = 2


@dataclass(frozen=True)
class Trainer:
    """One of the two ranks: its guard, what its agent would be told, one step of its training, and its optimizer."""

    guard: Guard
    heard: Heard
    step: Callable[[], None]
    optimizer: torch.optim.Optimizer


def layer() -> nn.Module:
    return nn.Linear(8, 8)


def join(
    stores: Sequence[BlobStore], clocks: Sequence[Clock], make: Callable[[], nn.Module] = layer
) -> list[Trainer]:
    """Both ranks, restored. Each has a store and a clock of its own, and a model that `make` has made."""
    met: Any = HashStore()
    life = os.urandom(8).hex().encode()

    def one(rank: int) -> Trainer:
        channel = Channel.join(met, rank, WORLD, f"m{rank}", SystemClock(), meet=lambda _: life)
        model = make()
        optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
        guard = Guard(stores[rank], "run", {"model": model, "optimizer": optimizer}, clocks[rank], channel)
        heard = Heard(guard)
        try:
            guard.restore()
        except BaseException:
            guard.close()
            raise

        def step() -> None:
            optimizer.zero_grad()
            model(torch.ones(4, 8)).square().mean().backward()
            optimizer.step()
            guard.step()

        return Trainer(guard, heard, step, optimizer)

    return on_all(one)


def on_all(what: Callable[[int], T]) -> list[T]:
    """Each rank does it on a thread of its own, at the same time."""
    with ThreadPoolExecutor(WORLD) as pool:
        return [each.result(PATIENCE) for each in [pool.submit(what, rank) for rank in range(WORLD)]]


@contextmanager
def two_guards(
    stores: Sequence[BlobStore], clocks: Sequence[Clock] = (), make: Callable[[], nn.Module] = layer
) -> Iterator[list[Trainer]]:
    """Closed together at the end."""
    trainers = join(stores, clocks or [SystemClock()] * WORLD, make)
    try:
        yield trainers
    finally:
        on_all(lambda rank: trainers[rank].guard.close())
        sigterm.let_go()
