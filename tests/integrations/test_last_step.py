"""The last step of a framework's loop: committed before anything comes behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from spotguard.integrations.binding import Bound
from spotguard.providers.errors import SpotguardError, StateError, StoreError

pytestmark = pytest.mark.torch


class Loop:
    """The binding of a loop that counts its steps."""

    def __init__(self) -> None:
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.done = 0

    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def position(self) -> dict[str, Any]:
        return {"done": self.done}

    def resume(self, position: Any) -> None:
        self.done = position["done"]

    def train(self, bound: Bound, *, last: bool) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(1, 2)).sum().backward()
        self.optimizer.step()
        self.done += 1
        bound.step(None, last=last)


@pytest.fixture
def bound(tmp_path: Path) -> Iterator[tuple[Loop, Bound]]:
    loop = Loop()
    made = Bound(loop, tmp_path, "loop")
    yield loop, made
    made.guard.close()


def saved(folder: Path) -> list[int]:
    return sorted(int(each.name[:9]) for each in folder.glob("*/checkpoints/*"))


def test_the_last_step_is_committed_at_its_boundary_and_once(
    bound: tuple[Loop, Bound], tmp_path: Path
) -> None:
    loop, made = bound
    loop.train(made, last=False)
    assert saved(tmp_path) == []
    loop.train(made, last=True)
    names = {*tmp_path.glob("*/checkpoints/*")}
    made.end_training()
    assert saved(tmp_path) == [2]
    assert {*tmp_path.glob("*/checkpoints/*")} == names


def test_half_a_step_at_the_end_of_a_loop_is_not_saved(bound: tuple[Loop, Bound], tmp_path: Path) -> None:
    loop, made = bound
    loop.train(made, last=False)
    loop.optimizer.step()
    made.end_training()
    assert saved(tmp_path) == []


@pytest.mark.parametrize(
    "error", [StoreError("the bucket is gone"), StateError("a tensor is in no state_dict()")]
)
def test_a_last_step_that_cannot_be_saved_ends_no_script(
    error: SpotguardError,
    bound: tuple[Loop, Bound],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Training has ended well, and what follows, such as an upload of the model, needs no checkpoint."""
    loop, made = bound

    def fail() -> None:
        raise error

    monkeypatch.setattr(made.guard, "save", fail)
    loop.train(made, last=True)
    assert f"the last step is not saved, and the script continues: {error}" in caplog.text
    assert saved(tmp_path) == []
