"""A background checkpoint that is called off stops reading: a notice, and training, never wait for all that nobody trains."""

from __future__ import annotations

import mmap
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from spotguard.hooks.checkpoint.retention import Keep
from spotguard.hooks.commit.cancel_scope import Abandoned
from spotguard.hooks.save.checkpointer import Checkpointer
from spotguard.hooks.save.request import SaveSpec
from spotguard.hooks.state.state import State
from spotguard.providers.clock import SystemClock
from spotguard.providers.errors import DeniedError
from tests.fakes.ranks import rank_of
from tests.fakes.store import FakeStore, Fault
from tests.fakes.touched import Touched

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).resolve().parents[3]
MIB = 2**20
#: Bytes at the most between two looks at whether a save may go on: a fiftieth of a second on one core.
LONGEST = 64 * MIB
#: More than that, and as little as shows it.
FROZEN = 160 * MIB
#: What else a process touches in the meantime: code, and its tables.
NOISE = 32 * MIB


def frozen(pieces: int, nbytes: int = FROZEN) -> tuple[nn.Module, int]:
    """A model of which only a head is trained, and where its other weights lie: in a mapping of their own."""
    memory = mmap.mmap(-1, nbytes)
    whole = torch.frombuffer(memory, dtype=torch.float32).fill_(1.0)
    base = nn.ParameterList([nn.Parameter(each, requires_grad=False) for each in whole.chunk(pieces)])
    return nn.ModuleDict({"base": base, "head": nn.Linear(4, 1)}), whole.data_ptr()


def checkpointer(store: FakeStore, world: int = 1) -> Checkpointer:
    return Checkpointer(store, "run", 1, clock=SystemClock(), keep=Keep(3), world=world, incarnation="life")


def guarded_state(model: nn.Module, world: int = 1) -> State:
    optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
    state = State({"model": model, "optimizer": optimizer}, lambda buffer: None, world=world)
    state.at_boundary()
    state.audit.take(lambda: False)
    return state


def read_while_shut(pieces: int) -> Touched:
    """What a background checkpoint reads of the frozen weights until the gate is open; then it is called off."""
    model, address = frozen(pieces)
    scope, store = Touched(address), FakeStore()

    def opened() -> None:
        scope.end()
        scope.abandon("it was seen enough")

    with closing(guarded_state(model)) as state, closing(checkpointer(store)) as writer:
        scope.begin()
        with pytest.raises(Abandoned, match="seen enough"):
            writer.save(state, SaveSpec(0), "background", scope, opened=opened)
    assert not store.objects
    return scope


def test_frozen_weights_stop_training() -> None:
    """One large weight."""
    assert read_while_shut(1).most <= LONGEST


@pytest.mark.slow
def test_differs_rate() -> None:
    """Many small ones."""
    assert read_while_shut(16).most <= LONGEST


@pytest.mark.slow
def test_digests_rate() -> None:
    """The copies are read with the gate open: it is the notice that would wait. All memory counts, so in a process of its own. Two threads
    read there: on a busy machine both do between two looks, and what one reads during the other's look counts twice."""
    script = f"from {__name__} import copied_and_read\nprint(copied_and_read())"
    alone = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert int(alone.stdout or 0) in range(1, 3 * LONGEST + NOISE), alone.stdout + alone.stderr


def copied_and_read() -> int:
    scope, store = Touched(), FakeStore()
    with rank_of(0, 2), closing(checkpointer(store, 2)) as writer:
        model = DistributedDataParallel(frozen(1, 2 * FROZEN)[0])
        state = guarded_state(model, 2)
        store.faults = [Fault(0, ("put",), error=lambda: DeniedError("it was seen enough"))]
        with pytest.raises(DeniedError, match="seen enough"):
            writer.save(state, SaveSpec(0), "background", scope, opened=scope.begin)
    scope.end()
    return scope.most
