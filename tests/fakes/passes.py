"""Loops over loaders, each run once undisturbed and unguarded, then guarded, with checkpoints from which other lives resume."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import spotguard
from tests.fakes.store import FakeStore
from tests.fakes.training import bits, guarded, seed

WIDTH = 4


class Rows(Dataset[torch.Tensor]):
    """Rows of numbers that tell which one they are."""

    def __init__(self, count: int = 20) -> None:
        self.rows = torch.arange(count * WIDTH).float().view(count, WIDTH) / (count * WIDTH)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]


class Cut(Exception):
    """The end of a life, right behind the save of a step."""


class Unwrapped:
    """A loader as a script has it that knows no spotguard."""

    epoch = position = 0

    def __init__(self, loader: Any, limit: int | None = None) -> None:
        self.loader, self._limit = loader, limit

    def __iter__(self) -> Iterator[Any]:
        batches: Iterator[Any] = iter(self.loader)
        if self._limit is None:
            return batches
        return (next(batches) for _ in range(self._limit))

    def __len__(self) -> int:
        return len(self.loader) if self._limit is None else self._limit


class Loop:
    """One life of a training on the batches of loaders.

    Args:
        store: the store; None for a life without a guard.
        cuts: the steps at which the life saves; it ends at the last one.
    """

    def __init__(self, store: FakeStore | None, cuts: Collection[int] = ()) -> None:
        self._store, self._cuts = store, cuts
        #: What the store held behind the save of each cut, and the losses so far.
        self.saved: dict[int, tuple[FakeStore, dict[Any, float]]] = {}
        seed()
        self.model: Any = nn.Sequential(nn.Linear(WIDTH, 8), nn.Dropout(0.3), nn.Linear(8, 1))
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.losses: dict[Any, float] = {}
        self.done = 0
        self.values: dict[str, Any] = {}
        self.guard: Any = None
        self._open: Any = None
        self._by_hand = True

    def wrap(self, loader: Any, limit: int | None = None) -> Any:
        """Wrap a loader as the script does."""
        return (
            Unwrapped(loader, limit)
            if self._store is None
            else spotguard.ResumableLoader(loader, limit=limit)
        )

    def restore(self, **values: Any) -> None:
        """Register everything and restore."""
        self.values = {"model": self.model, "optimizer": self.optimizer, **values}
        if self._store is not None:
            self._open = guarded(self._store, self.values)
            self.guard = self._open.__enter__()
            self.done = self.guard.restore()

    def learn(self, *batches: torch.Tensor) -> None:
        """Train one step on one batch or on several, and mark its boundary."""
        self.optimizer.zero_grad()
        for batch in batches:
            self.backward(batch)
        self.step()

    def loss_of(self, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = (self.model(batch.reshape(-1, WIDTH).float()) - 1).square().mean()
        return loss

    def backward(self, batch: torch.Tensor) -> None:
        self.descend(self.loss_of(batch))

    def descend(self, loss: torch.Tensor) -> None:
        loss.backward()
        self.losses[self.done] = self.losses.get(self.done, 0.0) + loss.item()

    def turns(self, total: int) -> Iterator[int]:
        """Yield the steps that are still to do, each of which the guard marks itself."""
        self._by_hand = False
        for number in range(self.done, total) if self.guard is None else self.guard.steps(total):
            self._end()
            yield number

    def note(self, name: str, number: Any) -> None:
        """Compare this number of this step, too."""
        self.losses[name, self.done] = number.item() if isinstance(number, torch.Tensor) else number

    @property
    def resumes(self) -> bool:
        """Whether this is the last life of several."""
        return self._store is not None and not self._cuts

    def step(self) -> None:
        self.optimizer.step()
        self.boundary()

    def boundary(self) -> None:
        """End a turn."""
        self.done += 1
        if self._by_hand:
            if self.guard is not None:
                self.guard.step()
            self._end()

    def _end(self) -> None:
        if self._store is not None and self.done in self._cuts:
            self.guard.save()
            self.saved[self.done] = self._store.copy(), dict(self.losses)
            if self.done == max(self._cuts):
                raise Cut

    def live(self, script: Callable[[Loop], object]) -> Loop:
        """Run the script to its end or to the cut."""
        try:
            script(self)
        except Cut:
            assert set(self.saved) == set(self._cuts)
        finally:
            if self._open is not None:
                self._open.__exit__(None, None, None)
        return self


Script = Callable[[Loop], object]


def unequal(script: Script, cuts: Iterable[int], twice: bool = False) -> list[int]:
    """Return the cuts with which a resumed run trains something else than an undisturbed one.

    Args:
        script: what is trained.
        cuts: the steps at which a first life ends.
        twice: cut the second life too, one step later.
    """
    plain = _what(Loop(None).live(script), {})
    first = Loop(FakeStore(), cuts := set(cuts)).live(script)
    assert set(first.saved) == cuts
    return [cut for cut in sorted(cuts) if _resumed(script, first, cut, twice) != plain]


def _resumed(script: Script, life: Loop, cut: int, again: bool) -> Any:
    store, losses = life.saved[cut]
    if again:
        _, later = Loop(store, [cut + 1]).live(script).saved[cut + 1]
        losses.update(later)
    return _what(Loop(store).live(script), losses)


def _what(loop: Loop, earlier: dict[Any, float]) -> Any:
    """The losses of a run, and every bit of what it registered at its end, but for the position of its loaders."""
    values = {
        name: value
        for name, value in loop.values.items()
        if isinstance(value, (dict, torch.Tensor))
        or (hasattr(value, "state_dict") and not hasattr(value, "position"))
    }
    return {**earlier, **loop.losses}, bits(values, rng=False)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings that were logged, each once, and forget them. A busy machine alone makes copies cost too much."""
    lines = {each.getMessage(): None for each in caplog.records if each.levelno >= logging.WARNING}
    caplog.clear()
    return [line for line in lines if "copying what changes between steps costs" not in line]
