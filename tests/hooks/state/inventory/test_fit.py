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
from spotguard.hooks.checkpoint.format.values.meeting import with_live
from spotguard.hooks.checkpoint.format.values.sameness import same
from spotguard.hooks.state.inventory.frozen import Forms, freeze, prove
from spotguard.hooks.state.parts.values import DictPart
from spotguard.providers.errors import CheckpointError, StateError
from tests.fakes.training import guarded
from tests.fakes.watched_store import WatchedStore

pytestmark = pytest.mark.torch


def no_tensor(name: str) -> Any:
    raise AssertionError(name)


def frozen(value: Any) -> Any:
    return freeze(value, Forms(objects=True))


def tree_of(notes: dict[Any, Any]) -> Any:
    """Return the tree of a dict, read back as from a checkpoint."""
    part = DictPart("notes", notes)
    part.at_boundary()
    return prove("notes", part.tree())


def restored(live: dict[Any, Any], saved: dict[Any, Any], others: Iterable[Any] = ()) -> list[str]:
    """Put a saved dict back into a live one; return what is said about it."""
    part = DictPart("notes", live)
    part.others = lambda: others
    part.put_back(tree_of(saved))
    if not part.said:
        assert same(tree_of(live), tree_of(saved)) == ""
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
    dicts = [{"x": torch.zeros(2)}]
    dicts.append({"x": dicts[0]["x"]})
    parts = [DictPart(name, notes) for name, notes in zip("ab", dicts, strict=True)]
    for part in parts:
        part.dicts = parts
    filling = parts[0].filling({name: {"x": torch.full((2,), n)} for name, n in (("a", 1.0), ("b", 2.0))})
    assert [filling.fill(name) for name in "ab"] == [[], []]
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


def two_lives(start: Callable[[nn.Module], Any], keep: Callable[[nn.Module], Any]) -> tuple[nn.Module, Any]:
    """Return the model of the second of two lives, and what its dict holds: the first life has kept that, and saved."""
    store = WatchedStore()
    for _ in range(2):
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        notes: dict[str, Any] = {"start": start(model)}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with guarded(store, {"model": model, "optimizer": optimizer, "notes": notes}) as guard:
            if guard.restore() == 0:
                model(torch.randn(4, 2))
                notes["start"] = keep(model)
                guard.step()
                guard.save()
    return model, notes["start"]


STARTS: dict[str, Callable[[nn.Module], Any]] = {
    "nothing": lambda model: None,
    "the weights": lambda model: model.state_dict(),
    "a copy": lambda model: copy.deepcopy(model.state_dict()),
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize(
    "keep",
    [
        lambda model: model.state_dict(),
        lambda model: {name: each.data for name, each in model.named_parameters()},
    ],
    ids=["state_dict", "data"],
)
def test_weights_that_a_dict_held_without_a_copy_are_the_weights_again(
    start: Callable[[nn.Module], Any], keep: Callable[[nn.Module], Any], caplog: pytest.LogCaptureFixture
) -> None:
    model, held = two_lives(start, keep)
    with torch.no_grad():
        model.get_parameter("0.weight").fill_(7)
        model.get_parameter("1.bias").fill_(8)
    assert held["0.weight"].tolist() == [[7, 7], [7, 7]]
    assert held["1.bias"].tolist() == [8, 8]
    assert (
        "1.running_mean" not in held
        or held["1.running_mean"].data_ptr() == model.get_buffer("1.running_mean").data_ptr()
    )
    assert [each.getMessage() for each in caplog.records if "notes" in each.getMessage()] == []


def test_parameters_in_a_list_are_the_parameters_again() -> None:
    model, held = two_lives(lambda model: [], lambda model: [*model.parameters()])
    assert all(one is other for one, other in zip(held, model.parameters(), strict=True))


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_copy_of_the_weights_stays_a_copy(start: Callable[[nn.Module], Any]) -> None:
    model, held = two_lives(start, lambda model: copy.deepcopy(model.state_dict()))
    saved = held["0.weight"].tolist()
    with torch.no_grad():
        model.get_parameter("0.weight").fill_(7)
    assert held["0.weight"].tolist() == saved


def joined(notes: dict[str, dict[str, Any]], saved: dict[str, dict[str, Any]]) -> list[str]:
    """Put saved dicts back into live ones, all of one script; return what is said."""
    trees: dict[str, Any] = {}
    for each in (saved, notes):
        parts = [DictPart(name, value) for name, value in each.items()]
        for part in parts:
            part.dicts = parts
            part.at_boundary()
        trees = trees or {part.name: prove(part.name, part.tree()) for part in parts}
    parts[0].begin(trees)
    for part in parts:
        part.put_back(trees[part.name])
    return [line for part in parts for line in part.said]


SHARED_VALUES: list[Callable[[], Any]] = [
    lambda: torch.zeros(3),
    lambda: np.zeros(2),
    lambda: [0],
    lambda: {"n": 0},
    lambda: deque([1], maxlen=3),
    lambda: {1},
    lambda: bytearray(b"ab"),
    lambda: Best(1.0, []),
    lambda: Attributes(a=1),
    lambda: random.Random(0),
]


@pytest.mark.parametrize("make", SHARED_VALUES)
@pytest.mark.parametrize("across", [False, True], ids=["one dict", "two dicts"])
@pytest.mark.parametrize("one_here", [False, True])
@pytest.mark.parametrize("one_saved", [False, True])
def test_values_are_one_object_if_they_were_one_when_they_were_saved(
    make: Callable[[], Any], across: bool, one_here: bool, one_saved: bool
) -> None:
    """Their values agree in all four cases."""

    def dicts(one: bool) -> dict[str, dict[str, Any]]:
        first = make()
        second = {"y": [first if one else make()]}
        return {"a": {"x": first}, "b": second} if across else {"a": {"x": first, **second}}

    here, saved = dicts(one_here), dicts(one_saved)
    assert joined(here, saved) == []
    assert ({**here["a"], **here.get("b", {})}["y"][0] is here["a"]["x"]) == one_saved


def test_an_object_that_gives_its_place_to_a_shared_one_is_said_if_the_script_holds_it() -> None:
    one, held = [1], [1]
    notes: dict[str, Any] = {"x": [1], "y": held}
    (said,) = restored(notes, {"x": one, "y": one})
    assert said.startswith(
        "notes.y is an object of its own here and was one with another value when it was saved"
    )
    assert notes["x"] is notes["y"] is not held


@pytest.mark.parametrize(
    "make",
    [
        lambda: (data := torch.arange(6.0), data[:2]),
        lambda: (data := np.arange(6.0), data[2:5]),
        lambda: (data := torch.ones(3, 2), data[1]),
        lambda: (data := bytearray(16), np.frombuffer(data, "f8")[1:]),
        lambda: (data := bytearray(16), np.frombuffer(memoryview(data)[8:], "f8")),
        lambda: (data := nn.Embedding(3, 2), data.weight.data[1]),
    ],
)
def test_memory_that_nobody_registered_is_not_written(make: Callable[[], Any]) -> None:
    """A script begins with a view of its data, and has a value of its own when it is saved."""
    data, view = make()
    before, notes = copy.deepcopy(data), {"x": view}
    del view
    value = notes["x"] + 1
    assert restored(notes, {"x": value}) == []
    assert repr(getattr(data, "weight", data)) == repr(getattr(before, "weight", before))
    assert same(notes["x"], value) == ""


@pytest.mark.parametrize(
    "make", [lambda: (data := torch.arange(6.0), data[:2]), lambda: (data := np.arange(6.0), data[2:5])]
)
@pytest.mark.parametrize("equal", [False, True])
def test_a_view_of_memory_that_is_not_registered_is_said_unless_its_bytes_are_the_saved_ones(
    make: Callable[[], Any], equal: bool
) -> None:
    here, saved = make(), make()
    if not equal:
        saved[0][:] += 1
    notes = {"x": here[1]}
    here = here[:1]
    said = restored(notes, {"x": saved[1]})
    if equal:
        assert said == []
        here[0][:] += 1
        assert (notes["x"] == saved[1] + 1).all()
    else:
        assert [line[:22] for line in said] == ["notes.x is a view of m"]
        assert (here[0] == make()[0]).all()


@pytest.mark.parametrize("make", [lambda: torch.zeros(3, 2).unbind(), lambda: (*np.zeros((3, 2)),)])
def test_rows_of_memory_that_nothing_else_uses_are_filled(make: Callable[[], Any]) -> None:
    notes, saved = {"x": deque(make())}, {"x": deque(make())}
    held = [*notes["x"]]
    for number, row in enumerate(saved["x"]):
        row += number
    assert restored(notes, saved) == []
    assert all(one is other for one, other in zip(notes["x"], held, strict=True))
    assert [row.tolist() for row in held] == [[0, 0], [1, 1], [2, 2]]


def test_a_view_that_was_one_of_a_registered_tensor_is_said_if_it_is_none_here() -> None:
    base = torch.arange(4.0)
    notes = {"a": torch.zeros(4), "b": torch.zeros(2)}
    (said,) = restored(notes, {"a": base, "b": base[:2]})
    assert said.startswith("notes.b shared memory with another value of a registered dict when it was saved")
    assert [each.tolist() for each in notes.values()] == [[0, 1, 2, 3], [0, 1]]


def test_views_that_agree_by_chance_become_two_as_saved() -> None:
    base = torch.zeros(4)
    notes = {"a": base[:3], "b": base[1:]}
    del base
    restored(notes, {"a": torch.zeros(3), "b": torch.zeros(3)})
    notes["a"] += 1
    assert notes["b"].tolist() == [0, 0, 0]


def test_a_run_with_shared_values_and_views_goes_on_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    store, seen = WatchedStore(), []
    for _ in range(2):
        table, one = torch.zeros(4, 2), [0]
        notes: dict[str, Any] = {"l": one, "deep": {"l": (one, 1)}, "t": table, "row": table[1]}
        registered = {**values(notes), "more": {"l": one, "rows": [*torch.zeros(2, 2).unbind()]}}
        with guarded(store, registered) as guard:
            if guard.restore() == 0:
                one.append(1)
                table += 3
                registered["more"]["rows"][1] += 1
                guard.step()
                guard.save()
        one.append(2)
        table += 1
        seen.append([notes["deep"]["l"], registered["more"], notes["row"].tolist()])
    assert same(frozen(seen[0]), frozen(seen[1])) == ""
    assert seen[1][0][0] == [0, 1, 2]
    assert [
        each.getMessage()
        for each in caplog.records
        if each.levelno >= 30 and "unguarded" not in each.getMessage()
    ] == []
