"""Objects that have another state behind a restore than was read for them."""

from __future__ import annotations

import logging
import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from spotguard.providers.errors import StateError
from tests.fakes.training import guarded
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch


class Meter:
    """An object with a state of its own; `load` is what its `load_state_dict` does."""

    def __init__(self, load: Callable[[Meter, dict[str, Any]], object] | None = None) -> None:
        self.state: dict[str, Any] = {"n": 0, "mean": torch.zeros(2), "seen": []}
        self._load = load or Meter.take

    def take(self, state: dict[str, Any]) -> object:
        self.state = state
        return self

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._load(self, state)


def life(store: WatchedStore, meter: Any, **more: Any) -> dict[str, Any]:
    """Run the life that saves, or the one that restores; return what was registered."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    registered = {"model": model, "optimizer": optimizer, "notes": {"x": [1]}, "bare": torch.zeros(3), **more}
    registered["meter"] = meter(registered) if callable(meter) else meter
    with guarded(store, registered) as guard:
        if guard.restore() == 0:
            model(torch.randn(4, 2)).square().sum().backward()
            optimizer.step()
            registered["bare"] += 1
            registered["notes"]["x"].append(2)
            if isinstance(registered["meter"], Meter):
                registered["meter"].state = {"n": 1, "mean": torch.ones(2), "seen": [1, 2.5]}
            guard.step()
            guard.save()
    return registered


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    return [line for line in lines if "unguarded" not in line]


@pytest.mark.parametrize(
    ("load", "where"),
    [
        (lambda self, state: None, "meter.n"),
        (lambda self, state: self.take({**state, "n": float(state["n"])}), "meter.n"),
        (lambda self, state: self.take({**state, "mean": state["mean"] + 1}), "meter.mean"),
        (lambda self, state: self.take({**state, "mean": state["mean"].half()}), "meter.mean"),
        (lambda self, state: self.take({**state, "seen": state["seen"][:1]}), "meter.seen[1]"),
        (lambda self, state: self.take({key: state[key] for key in ("n", "mean")}), "meter.seen"),
    ],
)
def test_an_object_that_does_not_take_its_state_back_is_named(
    load: Any, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = WatchedStore()
    life(store, Meter())
    caplog.clear()
    life(store, Meter(load))
    (said,) = warned(caplog)
    assert said.startswith(
        f"{where} is another value after the restore than in the checkpoint: Meter.load_state_dict() "
    )


class Clock(Meter):
    """Its state has a number that is another one at each call."""

    calls = 0

    def state_dict(self) -> dict[str, Any]:
        self.calls += 1
        return {**self.state, "asked": self.calls}


@pytest.mark.parametrize(
    "meter",
    [
        Meter,
        Clock,
        lambda: Meter(lambda self, state: self.take(dict(reversed(state.items())))),
        lambda: Meter(lambda self, state: (self.state["mean"].copy_(state["mean"]), self.take({**state}))),
        lambda: Meter(lambda self, state: self.take(OrderedDict(state))),
        lambda: Meter(lambda self, state: self.take({**state, "seen": tuple(state["seen"])})),
        lambda: Meter(lambda self, state: self.take({**state, "seen": deque(state["seen"], maxlen=9)})),
        lambda: Meter(lambda self, state: self.take(defaultdict(int, state))),
    ],
)
def test_an_object_that_takes_its_state_back_is_not_named(
    meter: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = WatchedStore()
    life(store, meter())
    caplog.clear()
    life(store, meter())
    assert warned(caplog) == []


@torch.no_grad()
def overwrite(registered: dict[str, Any], key: str, *, same: bool) -> None:
    model, optimizer = registered["model"], registered["optimizer"]
    target = {
        "weight": model[0].weight,
        "buffer": model[1].running_mean,
        "bare": registered["bare"],
        "moment": optimizer.state[model[0].weight].get("momentum_buffer"),
    }
    if target[key] is not None:
        target[key].copy_(target[key].clone() if same else target[key] + 1)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("weight", "model/0.weight was restored, and is another value now"),
        ("buffer", "model/1.running_mean was restored, and is another value now"),
        ("moment", "optimizer/state/model/0.weight/momentum_buffer was restored, and is another value now"),
        ("bare", "bare was restored, and is another value now"),
    ],
)
@pytest.mark.parametrize("same", [False, True])
def test_an_object_that_writes_into_another_one_is_refused_unless_nothing_differs(
    key: str, said: str, same: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = WatchedStore()
    life(store, Meter())
    caplog.clear()

    def meter(registered: dict[str, Any]) -> Meter:
        return Meter(lambda self, state: (self.take(state), overwrite(registered, key, same=same)))

    if same:
        life(store, meter)
        assert warned(caplog) == []
        return
    with pytest.raises(StateError, match=said):
        life(store, meter)


class Drawing(Meter):
    """Draws a number whenever it is asked."""

    def state_dict(self) -> dict[str, Any]:
        torch.rand(1)
        random.random()
        return self.state


def test_generators_that_an_object_moves_are_put_back_and_it_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, drawn = WatchedStore(), []
    for _ in range(2):
        caplog.clear()
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        registered = {"model": model, "optimizer": optimizer, "meter": Drawing(), "notes": {"x": [1]}}
        with guarded(store, registered) as guard:
            if guard.restore() == 0:
                guard.step()
                guard.save()
            drawn.append((torch.rand(1).item(), random.random()))
    assert drawn[0] == drawn[1]
    (said,) = warned(caplog)
    assert said.startswith("meter: its state_dict() draws from the generators (python, torch)")
