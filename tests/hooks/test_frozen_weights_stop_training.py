"""A background checkpoint that is called off stops reading: a notice, and training, never wait for all that nobody trains."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from spotguard.hooks.agreed import Agreed
from spotguard.hooks.checkpointer import Checkpointer
from spotguard.hooks.checkpoints.retention import Keep
from spotguard.hooks.state.registered import State
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import DeniedError
from tests.fakes.ranks import rank_of
from tests.fakes.store import FakeStore, Fault
from tests.fakes.touched import Touched

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

MIB = 2**20
#: Bytes at the most between two looks at whether a save may go on: a fiftieth of a second on one core.
PIECE = 64 * MIB
#: What is touched meanwhile: a piece and its copy, and code.
LONGEST = 2 * PIECE + 32 * MIB
#: More than that, and as little as shows it.
FROZEN = 192 * MIB


def frozen(pieces: int) -> nn.Module:
    """A model of which only a head is trained."""
    whole = torch.ones(FROZEN // 4)
    base = nn.ParameterList([nn.Parameter(each, requires_grad=False) for each in whole.chunk(pieces)])
    return nn.ModuleDict({"base": base, "head": nn.Linear(4, 1)})


def read_between_looks(model: nn.Module, world: int = 1) -> int:
    """Bytes that a background checkpoint touches at the most between two looks, until its first byte is sent."""
    effort, store = Touched(), FakeStore()
    store.faults = [Fault(0, ("put",), error=lambda: DeniedError("it was seen enough"))]
    optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
    state = State({"model": model, "optimizer": optimizer}, lambda frame: None, world=world)
    state.at_boundary()
    state.audit.take(lambda: False)
    writer = Checkpointer(store, "run", 1, clock=SystemClock(), keep=Keep(3), world=world, incarnation="life")
    effort.begin()
    with closing(writer), pytest.raises(DeniedError, match="seen enough"):
        writer.save(state, Agreed(0), "background", effort, opened=lambda: None)
    effort.end()
    assert effort.looks > 3
    assert not store.objects
    return effort.most


def test_frozen_weights_stop_training() -> None:
    """One large weight."""
    assert read_between_looks(frozen(1)) <= LONGEST


def test_differs_rate() -> None:
    """Many small ones."""
    assert read_between_looks(frozen(16)) <= LONGEST


def test_digests_rate() -> None:
    """Of what several ranks hold alike. The gate is open: it is the notice that would wait."""
    with rank_of(0, 2):
        assert read_between_looks(DistributedDataParallel(frozen(1)), 2) <= LONGEST


def test_frozen_weights_whose_checksums_nobody_wants_any_more() -> None:
    """A notice that comes while they are taken at the boundary ends that too."""
    model, asked = frozen(4), list[bool]()
    state = State({"model": model}, lambda frame: None)
    state.at_boundary()
    state.audit.take(lambda: asked.append(True) or True)  # type: ignore[func-returns-value]
    assert state.audit.reference is None
    state.audit.take(lambda: asked.append(True) or False)  # type: ignore[func-returns-value]
    assert state.audit.reference is not None
    assert len(asked) > FROZEN // PIECE
    state.close()
