"""What background checkpoints cost the training that goes on beside them, on the demo's model.

Each is measured as it goes: the steps from the boundary at which it begins to the one that finds it committed, beside
as many steps right after, without one. So all of its price is in it: the copy that training waits for, and the
upload that it shares the machine with.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import torch

import spotguard
from spotguard.demo import data
from spotguard.demo.model import GPT
from spotguard.hooks.save.schedule import AUTO_EVERY

from .environment import environment
from .rows import Row
from .scale import Scale

BATCH = 12
#: Steps after which a checkpoint is asked for again: a busy machine may give one up.
_PATIENCE = 50


def measure(scale: Scale) -> Iterator[Row]:
    pairs = scale.of(60, 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the demo
    try:
        training = DemoTraining(scale, "background")
        try:
            training.checkpoint()  # first times are not counted
            lost = []
            for _ in range(pairs):
                steps, beside = training.checkpoint()
                lost.append(beside - training.run(steps))
        finally:
            training.guard.close()
    finally:
        torch.set_num_threads(threads)
    yield Row("training time that one background checkpoint costs", "ms", tuple(each * 1e3 for each in lost))
    for every in (5.0, AUTO_EVERY):
        share = tuple(each / every * 100 for each in lost)
        which = ", the default" if every == AUTO_EVERY else ""
        yield Row(f"  as a share of step time, one every {every:.0f} s{which}", "%", share, figure=1.0)


class DemoTraining:
    """The demo's training loop, in pieces."""

    def __init__(self, scale: Scale, run_id: str, **more: torch.Tensor) -> None:
        self._model = GPT(len(data.ALPHABET))
        self._optimizer = torch.optim.AdamW(self._model.parameters())
        self._text = torch.tensor(data.encode(data.text()), dtype=torch.uint8)
        with environment(SPOTGUARD_EVERY="off", SPOTGUARD_KEEP="2", SPOTGUARD_SOCKET=""):
            self.guard = spotguard.register(
                (scale.folder / "store").as_uri(),
                run_id=run_id,
                model=self._model,
                optimizer=self._optimizer,
                **more,
            )
        self.guard.restore()
        self.run(3)

    def run(self, steps: int) -> float:
        """So many steps; seconds."""
        started = time.perf_counter()
        for _ in range(steps):
            self._step()
        return time.perf_counter() - started

    def checkpoint(self) -> tuple[int, float]:
        """The steps from a checkpoint's begin to its commit: how many, and seconds."""
        steps, before, started = 0, self.guard._checkpointer.last, time.perf_counter()
        while self.guard._checkpointer.last is before:
            if steps % _PATIENCE == 0:
                self.guard._schedule.due = 0.0  # at the next boundary
            self._step()
            steps += 1
        taken = time.perf_counter() - started
        self.guard._schedule.due = math.inf
        return steps, taken

    def _step(self) -> None:
        pieces = self._text[torch.randint(len(self._text) - 64, (BATCH, 1)) + torch.arange(65)].long()
        loss = self._model(pieces[:, :-1], pieces[:, 1:])
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self.guard.step()
