"""A registered dict comes back into the objects that the script holds, and into no memory that something else uses."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime
import enum
import random
import re
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from spotguard.hooks.checkpoint.format.values.decoder import decode
from spotguard.hooks.checkpoint.format.values.sameness import same
from spotguard.hooks.checkpoint.format.values.unsaved_value import with_live
from spotguard.hooks.state.inventory.frozen import Forms, freeze, prove
from spotguard.hooks.state.inventory.ownership import Ownership
from spotguard.hooks.state.parts.values import DictPart
from spotguard.providers.errors import CheckpointError, StateError
from tests.fakes.training import guarded
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch


def no_tensor(name: str) -> Any:
    raise AssertionError(name)


def frozen(value: Any) -> Any:
    return freeze(value, Forms(objects=True))


def restored(live: dict[Any, Any], saved: dict[Any, Any], others: Iterable[Any] = ()) -> list[str]:
    """Put a saved dict back into a live one; return what is said about it."""
    part = DictPart("notes", live)
    part.ownership = lambda: Ownership(others, [live])
    tree = prove("notes", frozen(saved))
    want = copy.deepcopy(tree)
    part.put_back(tree)
    if not part.said:
        assert same(frozen(live), want) == ""
    return part.said


@dataclasses.dataclass
class Best:
    loss: float
    at: list[int]


@dataclasses.dataclass(frozen=True)
class Fixed:
    rate: float


@dataclasses.dataclass(slots=True)
class Slots:
    seen: Any


class Phase(enum.Enum):
    WARM, COLD = "warm", "cold"


class Kind(enum.IntEnum):
    ONE, TWO = 1, 2


class Attributes(dict[str, Any]):
    """A dict whose items are attributes, as many configurations are."""

    def __init__(self, **items: Any) -> None:
        super().__init__(**items)
        self.__dict__ = self


class Marked(OrderedDict[str, Any]):
    pass


Pair = namedtuple("Pair", "left right")


def after_spawn(generator: Any) -> Any:
    """Return one of numpy's that has made two children: the next ones are others."""
    getattr(generator, "seed_seq", generator).spawn(2)
    return generator


def bits_after_spawn(seed: Any) -> Any:
    return after_spawn(np.random.default_rng(seed).bit_generator)


@pytest.mark.parametrize(
    ("live", "saved"),
    [
        ([1], [1, 2, 3]),
        ([1, 2, 3], []),
        (deque([1], maxlen=5), deque([1, 2], maxlen=5)),
        ({1}, {2, 3}),
        ({"a": 1, "gone": 2}, {"b": [1], "a": 2}),
        (OrderedDict(a=1, b=2), OrderedDict(b=1, a=2)),
        (Counter("ab"), Counter("aab")),
        (defaultdict[int, Any](list, {1: [2]}), defaultdict[int, Any](dict, {3: [4]})),
        (bytearray(b"ab"), bytearray(b"abc")),
        (np.zeros(3), np.arange(3.0)),
        (np.zeros((2, 2), "<f4", order="F"), np.asfortranarray(np.ones((2, 2), "<f4"))),
        (torch.zeros(3), torch.arange(3.0)),
        (torch.zeros(2, 3).t(), torch.ones(2, 3).t()),
        (nn.Parameter(torch.zeros(2)), torch.ones(2)),
        (torch.zeros(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)),
        (Best(1.0, [1]), Best(0.5, [1, 2])),
        (Slots([1]), Slots([2])),
        (Attributes(a=1), Attributes(a=2, b=[3])),
        (Marked(a=1), Marked(b=1, a=2)),
        (torch.Generator(), torch.Generator().manual_seed(3)),
        (random.Random(0), random.Random(1)),
        (np.random.default_rng(0), np.random.default_rng(1)),
        (np.random.RandomState(0), np.random.RandomState(1)),
        (np.random.default_rng(0), np.random.Generator(bits_after_spawn(0))),
        (np.random.Philox(0), after_spawn(np.random.Philox(0))),
        (np.random.SeedSequence(0), after_spawn(np.random.SeedSequence(1))),
        (np.random.SeedSequence([1, 2]).spawn(1)[0], after_spawn(np.random.SeedSequence([1, 2]).spawn(2)[1])),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("within", [lambda value: value, lambda value: [value], lambda value: (value, 1)])
def test_a_mutable_value_takes_its_saved_value_itself(
    live: Any, saved: Any, within: Callable[[Any], Any]
) -> None:
    live, saved = copy.deepcopy(live), copy.deepcopy(saved)
    notes = {"x": {"y": within(live)}}
    inside = notes["x"]
    assert restored(notes, {"x": {"y": within(saved)}}) == []
    assert notes["x"] is inside
    held = inside["y"] if within(0) == 0 else inside["y"][0]
    assert held is live
    assert same(frozen(live), frozen(saved)) == ""


@pytest.mark.parametrize(
    ("live", "saved"),
    [
        (1, "one"),
        (None, [1]),
        (1.0, torch.ones(2)),
        (Fixed(1.0), Fixed(2.0)),
        (Pair(1, 2), Pair(3, 4)),
        (Phase.WARM, Phase.COLD),
        (Kind.ONE, Kind.TWO),
        ((1, 2), (1, 2, 3)),
        (np.float64(1), np.float64(2)),
        (Fraction(1, 3), Decimal("0.5")),
        (datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)),
        (range(3), range(4)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_immutable_value_gives_its_place_without_a_word(live: Any, saved: Any) -> None:
    kept = copy.deepcopy(live)
    notes = {"x": live}
    assert restored(notes, {"x": saved}) == []
    assert type(notes["x"]) is type(saved)
    assert same(frozen(live), frozen(kept)) == ""


def test_a_list_in_a_named_tuple_is_filled() -> None:
    inside = [2]
    assert restored({"x": Pair(1, inside)}, {"x": Pair(3, [4, 5])}) == []
    assert inside == [4, 5]


def test_memory_of_another_registered_value_is_not_written() -> None:
    weights, views = torch.zeros(4), {}
    for key, value in {
        "alias": weights.detach(),
        "part": weights[1:3],
        "array": weights.numpy(),
        "own": torch.zeros(4),
    }.items():
        views[key] = value
    del value
    own = views["own"]
    views["again"] = views["alias"]
    saved = {"alias": torch.ones(4), "part": torch.ones(2), "array": np.ones(4, "f4"), "own": torch.ones(4)}
    saved["again"] = torch.ones(4)
    assert restored(views, saved, others=[weights]) == []
    assert weights.tolist() == [0] * 4
    assert views["own"] is own


def test_a_tensor_that_has_its_saved_value_already_stays() -> None:
    model = nn.Linear(2, 2)
    notes = {"params": [*model.parameters()], "state": model.state_dict()}
    held = [*notes["params"]]
    assert restored(notes, copy.deepcopy(notes), others=[*model.parameters()]) == []
    assert all(a is b for a, b in zip(notes["params"], held, strict=True))


@pytest.mark.parametrize(
    ("one", "saved"),
    [
        ([1], [2, 3]),
        (torch.zeros(3), torch.ones(3)),
        (np.zeros(2), np.ones(2)),
        ({"a": [1]}, {"a": [2]}),
    ],
    ids=["list", "tensor", "array", "dict"],
)
def test_one_object_at_several_places_stays_one_if_the_saved_values_agree(one: Any, saved: Any) -> None:
    one = copy.deepcopy(one)
    notes: dict[str, Any] = {"a": one, "t": (1, one, {"k": one}), "o": Pair(1, [one])}
    again = {"a": saved, "t": (1, saved, {"k": saved}), "o": Pair(1, [saved])}
    assert restored(notes, again) == []
    assert all(each is one for each in (notes["a"], notes["t"][1], notes["t"][2]["k"], notes["o"].right[0]))


def test_a_tensor_of_two_dicts_is_written_for_neither() -> None:
    one = torch.zeros(2)
    dicts = [{"x": one}, {"x": one}]
    for number, notes in enumerate(dicts):
        part = DictPart("notes", notes)
        part.ownership = lambda: Ownership((), dicts)
        part.put_back({"x": torch.full((2,), number + 1.0)})
    assert [notes["x"].tolist() for notes in dicts] == [[1, 1], [2, 2]]


def test_views_of_one_tensor_stay_views_if_the_saved_values_agree() -> None:
    base, fresh = torch.arange(4.0), torch.zeros(4)
    notes: dict[str, Any] = {"a": fresh, "b": fresh, "c": [fresh[:2]]}
    view = notes["c"][0]
    assert restored(notes, {"a": base, "b": base, "c": [base[:2]]}) == []
    assert notes["a"] is fresh
    assert notes["b"] is fresh
    assert notes["c"][0] is view
    assert fresh.tolist() == [0, 1, 2, 3]


def test_values_that_were_one_at_the_start_become_two_as_saved() -> None:
    notes: dict[str, Any] = {"a": torch.zeros(2), "l": [1]}
    notes |= {"b": notes["a"], "m": notes["l"]}
    saved = {"a": torch.ones(2), "l": [1], "b": torch.full((2,), 2.0), "m": [2]}
    assert restored(notes, saved) == []
    base = torch.zeros(4)
    halves = {"a": base[:2], "b": base[2:], "c": base[1:3]}
    assert restored(halves, {"a": torch.ones(2), "b": torch.ones(2), "c": torch.zeros(2)}) == []
    assert base.tolist() == [0] * 4


@pytest.mark.parametrize(
    ("live", "saved", "why"),
    [
        (torch.zeros(2), torch.ones(3), r"is a Tensor of torch\.float32, shape \(2,\) here"),
        (
            torch.zeros(2),
            torch.ones(2).double(),
            r"a Tensor of torch\.float64, shape \(2,\) in the checkpoint",
        ),
        (np.zeros(2), np.ones(2, "f4"), r"is a ndarray of float64, shape \(2,\) here"),
        ([1], deque([1]), "is a list here and a deque in the checkpoint"),
        (torch.zeros(1).expand(2), torch.ones(2), "shares its memory"),
    ],
    ids=["shape", "dtype", "array", "kind", "expanded"],
)
def test_another_object_in_the_place_of_a_held_one_is_said(live: Any, saved: Any, why: str) -> None:
    held = {"x": live}
    (said,) = restored(held, {"x": saved})
    assert said.startswith("notes.x ")
    assert held["x"] is not live
    assert re.search(why, said)


def test_another_object_in_a_place_that_only_the_dict_knows_is_not_said() -> None:
    notes = {"x": torch.zeros(2), "y": [np.zeros(2)]}
    assert restored(notes, {"x": torch.ones(3), "y": [np.ones(3)]}) == []


def test_an_object_without_a_live_one_at_its_place_is_named_and_the_rest_comes_back() -> None:
    notes: dict[str, Any] = {"history": [], "best": None, "phase": Kind.ONE, "n": 1, "deep": {"a": 0}}
    saved = {
        "history": [Best(1.0, [])],
        "best": Best(1.0, []),
        "phase": Phase.COLD,
        "n": 2,
        "deep": {"b": Fixed(1.0), "a": 1},
    }
    said = restored(notes, saved)
    assert [line.partition(" ")[0] for line in said] == [
        "notes.history[0]",
        "notes.best",
        "notes.phase",
        "notes.deep.b",
    ]
    assert notes == {"history": [], "best": None, "phase": Kind.ONE, "n": 2, "deep": {"a": 1}}


@pytest.mark.parametrize(
    "raw",
    [
        {"$": "object", "kind": "class", "class": "os.system", "value": {}},
        {"$": "object", "kind": "dataclass", "class": 1, "value": {}},
        {"$": "object", "kind": "dataclass", "class": "os.system"},
        {"$": "Decimal", "text": "one"},
        {"$": "Fraction", "parts": ["0x1", "0x0"]},
    ],
)
def test_an_object_in_another_form_is_refused(raw: Any) -> None:
    with pytest.raises(CheckpointError):
        decode(raw, no_tensor)


def test_other_tools_get_the_values_of_an_object() -> None:
    notes = {"best": Best(1.0, [2]), "pairs": [Pair(1, Phase.COLD)], "t": (Fixed(2.0),)}
    assert with_live(frozen(notes), plain=True) == {
        "best": {"loss": 1.0, "at": [2]},
        "pairs": [(1, "COLD")],
        "t": ({"rate": 2.0},),
    }


@pytest.mark.parametrize("value", [[1], "x", {"__class__": 1}, None, {"$": "tuple", "items": [1, 2, 3]}])
def test_a_hostile_object_changes_no_class(value: Any) -> None:
    """Whatever values it claims, the live object is of its own class, or stays as it is."""
    for live, kind in (
        (Best(1.0, [1]), "dataclass"),
        (Pair(1, 2), "namedtuple"),
        (Phase.WARM, "enum"),
        (Attributes(a=1), "mapping"),
        (random.Random(0), "generator"),
    ):
        cls = f"{type(live).__module__}.{type(live).__qualname__}"
        notes = {"x": live}
        raw = {"$": "object", "kind": kind, "class": cls, "value": value}
        with contextlib.suppress(StateError):
            DictPart("notes", notes).put_back({"x": decode(raw, no_tensor)})
        assert type(notes["x"]) is type(live)


def values(notes: dict[str, Any]) -> dict[str, Any]:
    model = nn.Linear(2, 2)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "notes": notes}


def test_a_script_goes_on_with_what_it_holds_of_a_dict(caplog: pytest.LogCaptureFixture) -> None:
    store = WatchedStore()
    for _ in range(2):
        average, seen, best = [torch.zeros(2)], np.zeros(3), Best(9.0, [])
        with guarded(store, values({"average": average, "seen": seen, "best": best})) as guard:
            if guard.restore() == 0:
                average[0] += 1
                seen += 2
                best.loss, best.at = 0.5, [3]
                guard.step()
                guard.save()
    assert (average[0].tolist(), seen.tolist(), best) == ([1, 1], [2, 2, 2], Best(0.5, [3]))
    assert not [each for each in caplog.records if "notes" in each.getMessage()]


def test_a_dict_begun_with_the_weights_does_not_overwrite_them() -> None:
    store = WatchedStore()
    for _ in range(2):
        registered = values({})
        registered["notes"]["start"] = registered["model"].state_dict()
        with guarded(store, registered) as guard:
            if guard.restore() == 0:
                registered["notes"]["start"] = {"weight": torch.full((2, 2), 7.0)}
                guard.step()
                guard.save()
                weight = registered["model"].weight.tolist()
    assert registered["model"].weight.tolist() == weight
    assert registered["notes"]["start"]["weight"].tolist() == [[7, 7], [7, 7]]
