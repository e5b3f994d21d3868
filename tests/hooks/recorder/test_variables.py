"""The script's variables, read without running any of its code."""

from __future__ import annotations

import collections
import itertools
import random
import sys
import threading
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from spotguard.hooks.recorder.state import RegisteredObjects  # noqa: E402
from spotguard.hooks.recorder.variables import CodeOwner, HiddenModules, VariableCensus  # noqa: E402

pytestmark = pytest.mark.torch


def census(
    given: dict[str, Any] | None = None, hidden: HiddenModules | None = None, **registered: Any
) -> VariableCensus:
    """Of these variables, as they would be in a function of the script's."""
    made = VariableCensus(CodeOwner("/nowhere"), RegisteredObjects(registered), hidden or HiddenModules())
    made._add_all("", given or {}, watched=True)
    made._run()
    if hidden is not None:
        made._modules_nobody_names()
    return made


class Sampler:
    __slots__ = ("at", "order")

    def __init__(self) -> None:
        self.at, self.order = 3, [2, 1]


class Trap:
    """Nothing of it may be called."""

    def __init__(self) -> None:
        self.kept = 1

    @property
    def dangerous(self) -> int:
        raise AssertionError("a property was asked")

    def __repr__(self) -> str:
        raise AssertionError("its text was asked for")

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("it was iterated")


def test_plain_values_are_told_as_they_are() -> None:
    found = census(
        {"step": 3, "rate": 0.5, "name": "a", "done": None, "history": [1, 2], "recent": (3.0,)}
    ).values
    assert found == {
        "step": "3",
        "rate": "0.5",
        "name": "'a'",
        "done": "None",
        "history": "[1, 2]",
        "recent": "[3.0]",
    }


def test_tensors_and_arrays_are_told_by_checksum_and_numbers_as_they_are() -> None:
    numpy = pytest.importorskip("numpy")
    given = {"w": torch.arange(4.0), "n": torch.tensor(7), "a": numpy.arange(3), "s": numpy.float32(0.5)}
    found = census(given).values
    assert found["w"].startswith("float32[4] ")
    assert (found["n"], found["s"]) == ("int64 7", "float32 0.5")
    assert found["a"].startswith("int64[3] ")
    assert census({"w": torch.arange(4.0) + 1}).values["w"] != found["w"]


def test_objects_of_the_scripts_own_are_looked_into_and_never_called() -> None:
    found = census({"sampler": Sampler(), "trap": Trap()}).values
    assert found == {"sampler.at": "3", "sampler.order": "[2, 1]", "trap.kept": "1"}


def test_generators_of_every_kind_are_told_by_their_state() -> None:
    numpy = pytest.importorskip("numpy")
    given = {
        "a": torch.Generator().manual_seed(1),
        "b": random.Random(1),
        "c": numpy.random.default_rng(1),
        "d": numpy.random.RandomState(1),
        "e": random.SystemRandom(),
    }
    before = census(given).values
    assert set(before) == {"a", "b", "c", "d"}
    assert all(text.startswith("generator ") for text in before.values())
    given["b"].random()
    given["c"].random()
    after = census(given).values
    assert [name for name in before if before[name] != after[name]] == ["b", "c"]


def count() -> Iterator[int]:
    at = 0
    while True:
        yield at
        at += 1


def make_rate() -> Any:
    taken = 0

    def rate() -> int:
        nonlocal taken
        taken += 1
        return taken

    return rate


def test_positions_are_found_where_code_hides_them() -> None:
    """In a generator function, a closure, an iterator and a partial; none of them moves."""
    source, rate, items = count(), make_rate(), iter([5, 6, 7])
    next(source), next(source), rate(), next(items)
    given = {
        "source": source,
        "rate": rate,
        "items": items,
        "number": itertools.count(4),
        "both": enumerate(items),
        "call": partial(max, [1, 2]),
    }
    found = census(given).values
    assert found["source's at"] == "1"
    assert found["rate's taken"] == "1"
    assert found["items"] == "iterator with 2 left"
    assert found["number"] == "count(4)"
    assert (next(source), rate(), next(items)) == (2, 2, 6)


def test_registered_fields_are_left_out_and_other_fields_are_not() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 1)
            self.calls = 5
            self.register_buffer("scale", torch.ones(2), persistent=False)

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    notes = {"seen": 1}
    given = {"model": model, "optimizer": optimizer, "notes": notes, "weight": model.linear.weight}
    found = census(
        {**given, "group": optimizer.param_groups[0]}, model=model, optimizer=optimizer, notes=notes
    )
    assert found.values["model.calls"] == "5"
    assert found.values["model.scale"].startswith("float32[2] ")
    assert [name for name in found.values if "weight" in name or "notes" in name or "group" in name] == []
    assert found.modules == {}
    assert found.objects["model"] == "model: registered Net"


def test_an_unregistered_object_is_told_with_its_type() -> None:
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    found = census({"other": other, "optimizer": optimizer, "scheduler": scheduler}, model=model)
    assert set(found.modules) == {"other.weight", "other.bias"}
    assert found.optimizers["optimizer.group 0.momentum"] == "0.9"
    assert found.objects["scheduler"] == "scheduler: StepLR"
    assert found.values["scheduler.last_epoch"] == "0"
    assert found.names[id(other)] == "other"


def test_a_helper_is_told_with_whether_its_attributes_are_values() -> None:
    """A registered dict can be the `vars()` of a plain one; slots are in none."""
    plain, other = Trap(), Trap()
    vars(plain).update(window=collections.deque([1.0]), draws=random.Random(0), mean=torch.ones(2))
    vars(other).update(model=nn.Linear(2, 1))

    def counted() -> None: ...

    vars(counted)["calls"] = 1
    found = census({"plain": plain, "other": other, "counted": counted, "sampler": Sampler()})
    assert found.objects == {
        "plain": "plain: plain Trap",
        "other": "other: other Trap",
        "counted": "counted: plain function",
        "sampler": "sampler: other Sampler",
        "other.model": "other.model: Linear",
    }


def test_a_view_of_registered_memory_is_no_variable() -> None:
    model = nn.Linear(2, 1)
    assert census({"flat": model.weight.detach().view(-1)}, model=model).values == {}


def test_a_registered_name_that_means_another_object_is_told() -> None:
    notes, model = {"at": 1}, nn.Linear(2, 1)
    found = census({"notes": {"at": 2}, "model": nn.DataParallel(model)}, notes=notes, model=model)
    assert found.rebound == ["notes"], "a wrapper is another type, and holds the model"


def test_a_name_of_what_a_registered_object_held_is_told() -> None:
    x, model, sampler = torch.ones(2), nn.BatchNorm1d(2), Trap()
    vars(sampler)["last"] = torch.zeros(3)
    progress = {"batch": [x], "rate": 0.1}
    registered = RegisteredObjects({"progress": progress, "model": model, "sampler": sampler})
    given = {"x": x, "mean": model.running_mean, "last": vars(sampler)["last"], "own": torch.ones(2)}
    given["same"] = x.detach()
    progress["batch"], model.running_mean, vars(sampler)["last"] = [x + 1], torch.ones(2), torch.ones(3)
    made = VariableCensus(CodeOwner("/nowhere"), registered, HiddenModules())
    made._add_all("", given, watched=True)
    made._run()
    assert (made.held, [*made.values]) == (["x", "mean", "last", "same"], [*given])


def test_an_environment_is_read_into_though_its_class_is_a_librarys() -> None:
    env = type("Env", (), {"__module__": "gymnasium.core"})
    inner, outer = type("Pendulum", (env,), {})(), type("TimeLimit", (env,), {})()
    vars(inner)["state"], vars(outer)["env"], vars(outer)["_elapsed_steps"] = torch.ones(2), inner, 7
    found = census({"env": outer})
    assert [*found.values] == ["env._elapsed_steps", "env.env.state"]
    assert found.objects["env"] == "env: environment TimeLimit"
    wrapper = types.SimpleNamespace(env=outer)
    assert census({"env": outer}, world=wrapper).objects["env"] == "world: registered TimeLimit"


def test_modules_that_no_variable_leads_to_are_found() -> None:
    """They hang in a library's objects, which are not looked into."""
    holder = types.SimpleNamespace(kept=nn.Bilinear(2, 2, 1))
    hidden = HiddenModules()
    hidden.search()
    assert "Bilinear.weight" in census({}, hidden).modules
    holder.kept = None
    assert "Bilinear.weight" not in census({}, hidden).modules, "what is gone is gone"


def test_tensors_without_memory_are_no_error() -> None:
    lazy, sparse = nn.LazyLinear(2), torch.eye(2).to_sparse()
    given = {"lazy": lazy, "weight": lazy.weight, "sparse": sparse, "meta": nn.Linear(1, 1, device="meta")}
    assert census(given).modules["lazy.weight"] == "UninitializedParameter without bytes (ValueError)"
    registered = census(given, lazy_too=nn.LazyLinear(3), meta_too=nn.Linear(1, 1, device="meta"))
    assert registered.modules.keys() == census(given).modules.keys(), "two without memory share none"
    lazy(torch.ones(1, 3))
    assert census(given).modules["lazy.weight"].startswith("float32[2, 3] ")


def test_circles_and_depth_come_to_an_end() -> None:
    circle: list[Any] = [1]
    circle.append(circle)
    deep: dict[str, Any] = {}
    inner = deep
    for _ in range(50):
        inner["in"] = {}
        inner = inner["in"]
    many = {"many": [[number] for number in range(5000)]}
    found = census(
        {"circle": circle, "deep": deep, **many, "lock": threading.Lock(), "deque": collections.deque([1])}
    )
    assert found.values["circle[0]"] == "1"
    assert found.values["len(many)"] == "5000"
    assert found.values["many[7]"] == "[7]"
    assert "many[4000]" not in found.values


def test_code_of_libraries_is_not_looked_into(tmp_path: Path) -> None:
    code = CodeOwner(str(tmp_path))
    assert not code.is_users(torch.__file__)
    assert not code.is_users(collections.__file__)
    assert not code.is_users(sys.modules["spotguard.hooks.recorder.variables"].__file__)
    assert code.is_users(str(tmp_path / "train.py"))
    assert code.is_users("<string>"), "python -c"
    assert code.portable(f"at {tmp_path}/out") == "at ./out"
