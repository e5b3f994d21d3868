"""What a rank has put for one notice is put again for the next one only while it is the very same state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import torch

from spotguard.hooks.checkpoint.retention import Keep
from spotguard.hooks.restore.restore import restore
from spotguard.hooks.save.cancel_scope import CancelScope
from spotguard.hooks.save.checkpointer import Checkpointer
from spotguard.hooks.save.request import SaveSpec
from spotguard.hooks.state.state import State
from spotguard.providers.clock import SystemClock
from tests.fakes.store import FakeStore

pytestmark = pytest.mark.torch


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def writer(store: FakeStore) -> Iterator[Checkpointer]:
    with closing(Checkpointer(store, "run", 1, clock=SystemClock(), keep=Keep(3))) as made:
        yield made


def shared(writer: Checkpointer, state: State, epoch: int) -> None:
    assert writer.save(state, SaveSpec(5, epoch), "emergency", CancelScope(SystemClock(), None)) is not None


def test_what_was_changed_for_a_save_by_hand_is_in_the_next_notices_checkpoint(
    store: FakeStore, writer: Checkpointer
) -> None:
    """A notice of this very step was over; `guard.save()` took the state anew, and another notice came first."""
    tensor, notes = torch.zeros(3), {"n": 0}
    state = State({"tensor": tensor, "notes": notes}, lambda buffer: None)
    state.at_boundary()
    shared(writer, state, 1)
    tensor += 7
    notes["n"] = 7
    state.take_again()
    shared(writer, state, 2)
    tensor.zero_()
    notes["n"] = 0
    assert restore(store, "run", state).step == 5
    assert (tensor.tolist(), notes) == ([7.0, 7.0, 7.0], {"n": 7})
