"""Parameters that change without a step of a registered optimizer may change at any moment."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch
from torch import nn

from spotguard.hooks.state.parts.values import COPY_AT_BOUNDARY
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


@pytest.mark.parametrize(
    ("own", "nbytes", "waits"),
    [
        pytest.param(False, 2 * COPY_AT_BOUNDARY, True, id="read-in-place"),
        pytest.param(False, 2**10, False, id="copied-at-each-boundary"),
        pytest.param(True, 2 * COPY_AT_BOUNDARY, False, id="torchs-own-memory"),
    ],
)
def test_a_large_array_of_numpy_has_saves_wait_for_boundaries(own: bool, nbytes: int, waits: bool) -> None:
    """Its changes are in no version of torch's, and a save beside a turn would take the half of them."""
    numpy = pytest.importorskip("numpy")
    array = numpy.zeros(nbytes // 4, numpy.float32)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    replay = torch.zeros(nbytes // 4) if own else torch.from_numpy(array)
    values = {"model": model, "optimizer": optimizer, "replay": replay}
    with closing(State(values, lambda frame: None)) as state:
        assert ("replay is memory that torch does not own" in state.boundary_only) is waits
