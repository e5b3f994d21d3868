"""What a save that is less than everything says of itself: which level, and why, to the agent and in the store."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from spotguard.hooks.control.gate_rule import Shut
from spotguard.hooks.guard import Guard
from spotguard.hooks.ipc import protocol
from spotguard.providers.errors import FullError
from tests.fakes.clock import ManualClock
from tests.fakes.noticed import Heard, notice, trained
from tests.fakes.slow_store import SlowStore
from tests.fakes.store import Fault
from tests.fakes.training import Job, different, restored, small, step_on
from tests.fakes.watched_store import PATIENCE

pytestmark = pytest.mark.torch


def outcome(store: SlowStore) -> Any:
    return json.loads(next(data for key, data in store.objects.items() if "/outcomes/" in key))


def test_everything_needs_no_words() -> None:
    """The level says it all."""
    clock = ManualClock()
    store = SlowStore(clock)
    with trained(store, clock=clock) as (guard, _, heard):
        guard._agent.hear(notice())
        committed = heard.wait(protocol.Committed)
        assert (committed.level, committed.detail) == ("full", "")
    assert (outcome(store)["level"], outcome(store)["reason"]) == ("full", "")


@pytest.mark.parametrize("known", [True, False], ids=["planned", "found-on-the-way"])
def test_weights_alone_are_said_with_the_numbers(known: bool) -> None:
    """The seconds hold the parameters and not the moments: known before, or seen as bytes leave."""
    clock = ManualClock()
    store = SlowStore(clock)
    store.parallel = 1
    with trained(store, clock=clock) as (guard, job, heard):
        guard.save()
        store.rate = store.nbytes() / 10  # everything: 10 s
        if known:
            step_on(guard, job, 2)
            guard.save()
        step_on(guard, job, 3)
        store.hold(lambda key: key.endswith("/0001.safetensors"))  # the moments
        before = store.kinds()["markers"]
        guard._agent.hear(notice("n1", seconds=8.5, reserve=0.0))
        store.wait_committed(before + 1)
        clock.advance(8.5)
        committed = heard.wait(protocol.Committed, 3 if known else 2)
        assert (committed.id, committed.level) == ("n1", "weights")
        assert "parameters and extras first, because the full state does not fit: " in committed.detail
        assert "/s need " in committed.detail
        assert re.search(
            r"; the moments: out of time; [\d.]+ of [\d.]+ MiB at [\d.]+ MiB/s$", committed.detail
        )
        store.let_go()
    assert (outcome(store)["level"], outcome(store)["committed"]) == ("weights", True)
    assert outcome(store)["reason"] == committed.detail


@contextmanager
def weights_alone() -> Iterator[tuple[SlowStore, Guard, Job, Heard]]:
    """Of step 3 the weights are committed at a notice that is answered, and the store refused the moments."""
    store = SlowStore(ManualClock())
    store.parallel = 1
    with trained(store, clock=store.clock) as (guard, job, heard):
        guard.save()
        step_on(guard, job, 2)
        store.calls.clear()
        store.faults = [Fault(1, verbs=("put",), error=lambda: FullError("no room"))]
        guard._agent.hear(notice("n1"))
        committed = heard.wait(protocol.Committed, 2)
        assert (committed.id, committed.step, committed.level) == ("n1", 3, "weights")
        yield store, guard, job, heard


def test_a_second_notice_saves_the_moments_too() -> None:
    """In the same step, of which only the weights are committed: there is more to be had."""
    with weights_alone() as (store, guard, job, heard):
        guard._agent.hear(notice("n2"))
        committed = heard.wait(protocol.Committed, 4)
        assert (committed.step, committed.level) == (3, "full")
        assert {message.id for message in heard.of(protocol.Committed)[-2:]} == {"n1", "n2"}
        bits = job.bits()
    found, state = restored(store, small)
    assert found == 3
    assert different(state, bits) == []


def test_a_second_notice_that_finds_no_more_has_the_weights() -> None:
    """They are of this very step: it is told so, and what came after them."""
    with weights_alone() as (store, guard, _, heard):
        before = store.kinds()
        store.faults = [Fault(n, verbs=("put",), error=lambda: FullError("no")) for n in range(99)]
        guard._agent.hear(notice("n2"))
        committed = heard.wait(protocol.Committed, 4)
        assert (committed.step, committed.level) == (3, "weights")
        assert committed.detail.endswith("; the moments: no room; the save after it: no")
        assert heard.of(protocol.Failed) == []
        assert store.kinds() == before


def test_weights_after_which_the_state_moved_are_no_background_checkpoint() -> None:
    """The save of everything was thrown away, and no further boundary came: the weights stand, and say whose they are."""
    store = SlowStore(ManualClock())
    store.parallel = 1
    with trained(store, clock=store.clock) as (guard, job, heard):
        guard.save()
        store.rate = store.nbytes() / 10
        step_on(guard, job, 2)
        store.hold(lambda key: key.endswith("/0001.safetensors"))
        guard._agent.hear(notice("n1", seconds=8.5, reserve=0.0))
        store.wait_committed(2)
        with torch.no_grad():
            job.values["model"][0].weight.add_(1.0)
        store.rate *= 1000
        store.let_go()
        with guard._gate._changed:
            assert guard._gate._changed.wait_for(lambda: guard._gate.place.shut is Shut.AT_BOUNDARY, PATIENCE)
        guard._agent.hear(notice("n1", seconds=0.0, reserve=0.0))
        committed = heard.wait(protocol.Committed, 2)
        assert (committed.id, committed.step, committed.level) == ("n1", 3, "weights")
        assert committed.detail.startswith("parameters and extras first, ")
        assert committed.detail.endswith(
            "; the save after it: out of time: training reached no guard.step() before the deadline [SG502]"
        )


def test_nothing_is_said_with_the_numbers() -> None:
    """Not even the parameters fit: not a byte is sent, and what stays is named."""
    clock = ManualClock()
    store = SlowStore(clock)
    with trained(store, clock=clock) as (guard, job, heard):
        store.rate = 10.0
        guard.save()
        step_on(guard, job, 2)
        before = store.kinds()
        guard._agent.hear(notice("n1", seconds=10.0, reserve=0.0))
        reason = heard.wait(protocol.Failed).reason
        assert reason.startswith("nothing is saved: parameters and extras alone do not fit: ")
        assert "9.8 s are left; step 2 stays" in reason
        assert heard.of(protocol.Committed)[-1].id == ""
    assert store.kinds() == before
    assert (outcome(store)["level"], outcome(store)["reason"]) == ("", reason)


def test_an_unlikely_save_is_tried_if_no_checkpoint_stays() -> None:
    """The link crept along for the whole of the first warning, and nothing else is known of it; at the next it is back."""
    clock = ManualClock()
    store = SlowStore(clock)
    store.rate = 30.0
    with trained(store, clock=clock) as (guard, job, heard):
        guard._agent.hear(notice("n1", seconds=10.0, reserve=0.0))
        heard.wait(protocol.Failed)
        assert store.kinds()["markers"] == 0
        store.rate = float("inf")
        step_on(guard, job, 2)
        guard._agent.hear(notice("n2", seconds=10.0, reserve=0.0))
        committed = heard.wait(protocol.Committed)
        assert (committed.id, committed.step, committed.level) == ("n2", 3, "full")
    saved, state = restored(store, small)
    assert saved == 3
    assert different(state, job.bits()) == []
