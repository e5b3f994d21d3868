"""A `register` that failed was not there: the optimizer steps as if nobody had asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from spotguard.hooks.register import register
from spotguard.hooks.state.state import State
from spotguard.providers.errors import StateError, UsageError

pytestmark = pytest.mark.torch


def test_failed_register_leaves_hooks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option that cannot be read is refused before anything is touched."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.setenv("SPOTGUARD_EVERY", "bogus")
    with pytest.raises(UsageError, match="bogus"):
        register(folder.as_uri(), model=model, optimizer=optimizer)
    assert not optimizer._optimizer_step_pre_hooks
    assert list(folder.iterdir()) == []


class Odd:
    """An object whose state no save can hold."""

    def state_dict(self) -> dict[str, object]:
        return {"thing": object()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        raise AssertionError("nothing is restored")


def test_a_value_that_cannot_be_saved_leaves_no_hook_on_the_optimizer() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(StateError, match="odd"):
        State({"model": model, "optimizer": optimizer, "odd": Odd()}, lambda frame: None)
    assert not optimizer._optimizer_step_pre_hooks
