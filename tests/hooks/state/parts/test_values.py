"""Values of a state: copied so that nothing reaches the copy, and refused by name where that cannot be."""

from __future__ import annotations

import random
import re
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from spotguard.hooks.state.inventory.frozen import freeze
from spotguard.providers.errors import StateError
from tests.fakes.training import guarded
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch


def loss() -> torch.Tensor:
    """A tensor that is a result, as scripts keep them."""
    return torch.ones(2, requires_grad=True) * 2


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([[1], loss()], lambda value: (value[0].append(2), value[1].detach().zero_())),
        (deque([[1], loss()], maxlen=3), lambda value: (value[0].append(2), value[1].detach().zero_())),
        (OrderedDict(a=[1], b=loss()), lambda value: (value["a"].append(2), value["b"].detach().zero_())),
        (
            defaultdict(list, a=[1], b=loss()),
            lambda value: (value["a"].append(2), value["b"].detach().zero_()),
        ),
        ({"s": {1, 2}, "a": np.ones(3)}, lambda value: (value["s"].add(3), value["a"].fill(7))),
    ],
    ids=["list", "deque", "ordered", "default", "plain"],
)
def test_nothing_reaches_a_copy(value: Any, change: Callable[[Any], None]) -> None:
    """Whatever happens to the value, and to what is in it, afterwards; it is of the same type."""
    copy = freeze(value)
    before = repr(copy)
    change(value)
    assert repr(copy) == before != repr(value)
    assert type(copy) is type(value)
    assert getattr(copy, "maxlen", None) == getattr(value, "maxlen", None)
    assert getattr(copy, "default_factory", None) == getattr(value, "default_factory", None)


def circle() -> dict[str, Any]:
    notes: dict[str, Any] = {}
    notes["me"] = notes
    return notes


def well() -> dict[str, Any]:
    top: dict[str, Any] = {}
    notes = top
    for _ in range(5000):
        notes["x"] = notes = {}
    return top


UNSAVABLE: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "generator": (
        lambda: {"draws": (n for n in range(3))},
        r"notes\.draws is a generator, which cannot be saved",
    ),
    "module": (lambda: {"os": random}, r"notes\.os is a module, which cannot be saved"),
    "function": (lambda: {"f": [lambda: 0]}, r"notes\.f\[0\] is a function, which cannot be saved"),
    "circle": (circle, r"notes\.me is a dict that contains itself, which cannot be saved; break the cycle"),
    "well": (well, r"notes\.x\..* is nested deeper than 64 levels; flatten it"),
}


def values(notes: dict[str, Any]) -> dict[str, Any]:
    model = nn.Linear(2, 2)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "notes": notes}


@pytest.mark.parametrize("kind", UNSAVABLE)
def test_values_that_cannot_be_copied_are_refused_at_register(kind: str) -> None:
    """In one line, with the way to it; nothing is claimed in the store."""
    make, said = UNSAVABLE[kind]
    store = WatchedStore()
    with pytest.raises(StateError, match=said) as raised, guarded(store, values(make())):
        pass
    assert "\n" not in str(raised.value)
    assert store.objects == {}


@pytest.mark.parametrize("kind", UNSAVABLE)
def test_an_unsavable_value_that_comes_later_ends_no_training(kind: str) -> None:
    """The save leaves it out by name, and the next one is whole when it is gone."""
    make, said = UNSAVABLE[kind]
    store, notes = WatchedStore(), dict[str, Any]()
    with guarded(store, values(notes)) as guard:
        guard.restore()
        guard.step()
        notes.update(make())
        if kind == "circle":
            notes["me"] = notes
        guard.step()
        (left_out,) = guard.save().left_out
        assert re.match(said.partition(" is ")[0], left_out)
        notes.clear()
        guard.step()
        assert guard.save().left_out == ()
    assert store.kinds()["manifests"] == 2


class Refuses(nn.Module):
    """Its own words about a state are torch's: several lines."""

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        return {"a": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # type: ignore[override]
        nn.Linear(2, 2).load_state_dict({"odd": torch.ones(1)})


def test_the_words_of_others_are_put_into_one_line() -> None:
    """torch says in four lines what is missing and what is unknown."""
    store = WatchedStore()
    with guarded(store, values({}) | {"own": Refuses()}) as guard:
        guard.restore()
        guard.save()
    with (
        guarded(store, values({}) | {"own": Refuses()}) as guard,
        pytest.raises(
            StateError, match=r"own: .* Missing key\(s\) in state_dict: .*weight.* Unexpected"
        ) as raised,
    ):
        guard.restore()
    assert "\n" not in str(raised.value)
    assert "\t" not in str(raised.value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "extra is of type NoneType, which cannot be saved: leave it out"),
        (3, r"extra is of type int, .* put it into a dict .* notes=\{'extra': …\}"),
        ([1.0], "extra is of type list, .* put it into a dict"),
        ("x", "extra is of type str, .* put it into a dict"),
        (nn.Linear, "extra is the class Linear; register an instance of it"),
        (torch.Generator(), r"extra is of type Generator, .* wrap it in an object whose state_dict\(\)"),
        (np.random.default_rng(0), "extra is of type Generator, .* wrap it"),
        (random.Random(0), "extra is of type Random, .* wrap it"),
        (object(), r"extra is of type object, .* give it state_dict\(\) and load_state_dict\(\)"),
        (torch.utils.data.DataLoader([1]), "extra is a DataLoader, .* spotguard.ResumableLoader"),  # type: ignore[arg-type]
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_object_that_cannot_be_registered_is_told_how_it_can(value: Any, said: str) -> None:
    """Name, type, and the way out of just this one."""
    store = WatchedStore()
    with pytest.raises(StateError, match=said) as raised, guarded(store, values({}) | {"extra": value}):
        pass
    assert "\n" not in str(raised.value)
    assert store.objects == {}
