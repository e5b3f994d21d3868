"""Parameters that change without a step of a registered optimizer may change at any moment."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch
from torch import nn

from spotguard.hooks.state.state import State

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("steps", [True, False])
def test_a_change_without_a_registered_step_has_saves_wait_for_boundaries(steps: bool) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with closing(State({"model": model, "optimizer": optimizer}, lambda frame: None)) as state:
        state.at_boundary()
        if steps:
            model(torch.ones(3)).sum().backward()
            optimizer.step()
        else:
            model.weight.data.add_(1)
        state.at_boundary()
        assert ("although no registered optimizer stepped" in state.boundary_only) is not steps
