"""What background checkpoints cost the training that goes on beside them, on the demo's model.

Blocks of steps in pairs, one with a checkpoint begun at its start and one without, in one process and in changing
order: what the machine does to both is the same. A block is longer than a checkpoint, so all of its price is in it:
the copy that training waits for, and the upload that it shares the machine with.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import nn

import spotguard
from spotguard.demo import corpus
from spotguard.demo.gpt import GPT
from spotguard.hooks.cadence import AUTO_EVERY
from spotguard.hooks.guard import Guard

from .environment import environment
from .rows import Row
from .scale import Scale

BATCH = 12


def measure(scale: Scale) -> Iterator[Row]:
    steps, pairs = scale.of((40, 12), (3, 1))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the demo
    model = GPT(len(corpus.ALPHABET))
    optimizer = torch.optim.AdamW(model.parameters())
    with environment(SPOTGUARD_EVERY="off", SPOTGUARD_KEEP="2", SPOTGUARD_SOCKET=""):
        store = (scale.folder / "store").as_uri()
        guard = spotguard.register(store, run_id="background", model=model, optimizer=optimizer)
    try:
        guard.restore()
        text = torch.tensor(corpus.encode(corpus.text()), dtype=torch.uint8)
        for saves in (False, True):  # first times are not counted
            _block(guard, model, optimizer, text, steps, saves=saves)
        lost, share = [], []
        for number in range(pairs):
            order = (False, True) if number % 2 else (True, False)
            spent = {saves: _block(guard, model, optimizer, text, steps, saves=saves) for saves in order}
            lost.append((spent[True] - spent[False]) * 1e3)
            share.append((spent[True] / spent[False] - 1) * 100)
            block = spent[False]
    finally:
        guard.close()
        torch.set_num_threads(threads)
    yield Row("training time that one background checkpoint costs", "ms", tuple(lost))
    yield Row(f"  as a share of step time, one every {block:.1f} s", "%", tuple(share))
    rarely = tuple(value / 10 / AUTO_EVERY for value in lost)
    yield Row(
        f"  as a share of step time, one every {AUTO_EVERY:.0f} s (the default)", "%", rarely, figure=1.0
    )


def _block(
    guard: Guard,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    text: torch.Tensor,
    steps: int,
    *,
    saves: bool,
) -> float:
    """So many steps; seconds. With `saves`, the first boundary begins a background checkpoint."""
    before = guard._checkpointer.last
    if saves:
        guard._cadence.due = 0.0
    started = time.perf_counter()
    for _ in range(steps):
        x, target = _batch(text)
        loss = model(x, target)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        guard.step()
    spent = time.perf_counter() - started
    if saves and guard._checkpointer.last is before:
        raise RuntimeError("the checkpoint was not committed within its block: a longer block is needed")
    return spent


def _batch(text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    pieces = text[torch.randint(len(text) - 64, (BATCH, 1)) + torch.arange(65)].long()
    return pieces[:, :-1], pieces[:, 1:]
