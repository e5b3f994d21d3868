"""A `register` that failed was not there: the optimizer steps as if nobody had asked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from spotguard.hooks.register import register
from spotguard.providers.errors import UsageError

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
