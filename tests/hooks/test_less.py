"""What a save that is less than everything says of itself: which level, and why, to the agent and in the store."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spotguard.hooks import protocol
from tests.fakes.clock import ManualClock
from tests.fakes.noticed import notice, trained
from tests.fakes.slow_store import SlowStore

pytestmark = pytest.mark.torch


def outcome(store: SlowStore) -> Any:
    return json.loads(next(data for key, data in store.objects.items() if "/outcomes/" in key))


def test_everything_needs_no_words() -> None:
    """The level says it all."""
    clock = ManualClock()
    store = SlowStore(clock)
    with trained(store, clock=clock) as (guard, _, heard):
        guard._on_message(notice())
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
            job.step(2)
            guard.step()
            guard.save()
        job.step(3)
        guard.step()
        store.hold(lambda key: key.endswith("/0001.safetensors"))  # the moments
        before = store.kinds()["markers"]
        guard._on_message(notice("n1", seconds=8.5, reserve=0.0))
        store.wait_committed(before + 1)
        clock.advance(8.5)
        committed = heard.wait(protocol.Committed, 3 if known else 2)
        assert (committed.id, committed.level) == ("n1", "weights")
        assert "parameters and extras first, for everything does not fit: " in committed.detail
        assert "/s need " in committed.detail
        assert "; the moments: out of time" in committed.detail
        store.let_go()
    assert (outcome(store)["level"], outcome(store)["committed"]) == ("weights", True)
    assert outcome(store)["reason"] == committed.detail


def test_nothing_is_said_with_the_numbers() -> None:
    """Not even the parameters fit: not a byte is sent, and what stays is named."""
    clock = ManualClock()
    store = SlowStore(clock)
    with trained(store, clock=clock) as (guard, job, heard):
        store.rate = 10.0
        guard.save()
        job.step(2)
        guard.step()
        before = store.kinds()
        guard._on_message(notice("n1", seconds=10.0, reserve=0.0))
        reason = heard.wait(protocol.Failed).reason
        assert reason.startswith("nothing is saved, parameters and extras alone do not fit: ")
        assert "9.8 s are left; step 2 stays" in reason
        assert heard.of(protocol.Committed)[-1].id == ""
    assert store.kinds() == before
    assert (outcome(store)["level"], outcome(store)["reason"]) == ("", reason)
