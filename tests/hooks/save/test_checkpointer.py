"""What a rank has put for one notice is put again for the next one only while it is the very same state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
import torch

from spotguard.hooks.checkpoint.format.codec import decode_saving
from spotguard.hooks.checkpoint.retention import Keep
from spotguard.hooks.commit.cancel_scope import CancelScope
from spotguard.hooks.restore.restore import restore
from spotguard.hooks.save.checkpointer import Checkpointer
from spotguard.hooks.save.request import SaveSpec
from spotguard.hooks.state.state import State
from spotguard.providers.clock import SystemClock
from tests.fakes.called import CalledStore, Request
from tests.fakes.store import FakeStore
from tests.fakes.watched_store import WatchedStore

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


def test_changes_before_a_save_by_hand_are_in_the_next_notices_checkpoint(
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


def test_training_goes_on_only_when_its_state_is_copied(store: FakeStore, writer: Checkpointer) -> None:
    """A background checkpoint has the values of its boundary, whatever training does from then on."""
    model = torch.nn.Linear(3, 1)
    values = {"model": model, "optimizer": torch.optim.SGD(model.parameters())}
    with closing(State(values, lambda frame: None)) as state:
        state.at_boundary()
        before = model.weight.tolist()

        def trains() -> None:
            model.weight.data.fill_(7)

        scope, parked = CancelScope(SystemClock(), None), SaveSpec(5, parked=True)
        assert writer.save(state, parked, "background", scope, None, trains) is not None
        assert model.weight.tolist() == [[7.0, 7.0, 7.0]]
        assert restore(store, "run", state).step == 5
        assert model.weight.tolist() == before


def test_a_state_that_moves_during_its_upload_is_not_committed() -> None:
    """By `.data`, which no version shows: the tensors are read a second time before the manifest."""
    below, model = FakeStore(), torch.nn.Linear(3, 1)

    def moves(request: Request) -> None:
        if request.verb == "put" and request.key.endswith(".safetensors"):
            model.weight.data.fill_(7)

    values = {"model": model, "optimizer": torch.optim.SGD(model.parameters())}
    store = CalledStore(below, moves)
    with (
        closing(State(values, lambda frame: None)) as state,
        closing(Checkpointer(store, "run", 1, clock=SystemClock(), keep=Keep(3))) as writer,
    ):
        state.at_boundary()
        scope = CancelScope(SystemClock(), None)
        assert writer.save(state, SaveSpec(5), "emergency", scope) is None
        assert "changed" in writer.spoiled
    assert not any(key.endswith(".json") for key in below.objects)


def test_a_save_is_announced_until_the_machines_that_go_are_gone() -> None:
    """The ranks that stay have no deadline of their own."""
    store, clock = WatchedStore(), SystemClock()
    state = State({"tensor": torch.zeros(3)}, lambda buffer: None)
    state.at_boundary()
    with closing(Checkpointer(store, "run", 1, clock=clock, keep=Keep(3))) as writer:
        agreed = SaveSpec(5, 1, departing_until=clock.monotonic() + 100)
        assert writer.save(state, agreed, "emergency", CancelScope(clock, None)) is not None
        store.wait_for(lambda keys: bool(store.announcements))
    ((key, data),) = store.announcements.items()
    assert 50 < decode_saving(data, key) <= 100
