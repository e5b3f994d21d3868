"""The forms of copied values: a new one is proven at the boundary where it appears."""

from __future__ import annotations

import dataclasses
import datetime
import random
import re
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spotguard.hooks.checkpoint.format import packing
from spotguard.hooks.state.inventory import frozen
from spotguard.hooks.state.inventory.looks import differing, looks
from spotguard.hooks.state.parts.values import DictPart
from spotguard.providers.errors import StateError
from tests.fakes.training import guarded

pytestmark = pytest.mark.torch


def logged(caplog: pytest.LogCaptureFixture, notes: dict[str, Any], later: Callable[[], object]) -> list[str]:
    """Take a boundary as `register` does, change the dict, and take two more; return what these two log."""
    part = DictPart("notes", notes)
    part.at_boundary()
    caplog.clear()
    later()
    part.at_boundary()
    part.at_boundary()
    return [each.getMessage() for each in caplog.records]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("new", lambda: 0, "no save can hold notes.new: function"),
        ("x", object(), "no save can hold notes.x: object"),
        ("x", [[Exception()]], r"no save can hold notes.x\[0\]\[0\]: Exception"),
        ("x", torch.zeros(2).to_sparse(), "no save can hold notes.x: torch.Tensor"),
        ("x", np.zeros(1, [("a", "i4")]), "no save can hold notes.x: numpy.ndarray"),
        ("x", np.array([None]), "no save can hold notes.x: numpy.ndarray"),
        ("x", defaultdict(lambda: 0), "no save can hold notes.x: collections.defaultdict"),
        ("x", {object(): 1}, "no save can hold notes.x key <object>: object"),
        (frozenset({object()}), 1, "no save can hold notes key <frozenset>: frozenset"),
        ("x", {1: {2: {3: datetime.UTC}}}, r"no save can hold notes.x\[1\]\[2\]\[3\]: datetime"),
    ],
)
def test_a_value_that_becomes_unsavable_is_said_once_at_its_boundary(
    caplog: pytest.LogCaptureFixture, key: Any, value: Any, said: str
) -> None:
    notes: dict[Any, Any] = {"x": 1, "t": torch.zeros(2)}
    (line,) = logged(caplog, notes, lambda: notes.update({key: value}))
    assert re.match(said, line)


@dataclasses.dataclass
class Best:
    loss: float


@pytest.mark.parametrize(
    ("key", "value", "where"),
    [
        ("new", Best(1.0), "notes.new"),
        ("x", [1, {"best": Best(1.0)}], r"notes.x\[1\].best"),
        ("x", random.Random(0), "notes.x"),
        (3, torch.Generator(), r"notes\[3\]"),
    ],
)
def test_an_object_of_a_new_class_is_named_with_its_place(
    caplog: pytest.LogCaptureFixture, key: Any, value: Any, where: str
) -> None:
    notes: dict[Any, Any] = {"x": 1}
    (line,) = logged(caplog, notes, lambda: notes.update({key: value}))
    assert re.match(f"{where} is a [a-zA-Z_.]* since this step", line)
    assert logged(caplog, {"known": value}, lambda: None) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("x", "text"),
        ("new", [1, None, 2.5, True]),
        ("x", torch.zeros(3, 4, dtype=torch.float64).t()),
        ("x", np.zeros(3, "i4")),
        ("x", defaultdict(list)),
        ("x", {1: {2: (3, {4})}}),
        ("x", Fraction(1, 3)),
        ((1, "key"), datetime.date(2020, 1, 1)),
    ],
)
def test_a_value_that_changes_into_another_savable_one_is_not_said(
    caplog: pytest.LogCaptureFixture, key: Any, value: Any
) -> None:
    notes: dict[Any, Any] = {"x": 1, "t": torch.zeros(2)}
    assert logged(caplog, notes, lambda: notes.update({key: value})) == []


ROWS = [[1, 2] for _ in range(20_000)]


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_FREE", 2**20)
    monkeypatch.setattr(frozen, "_MANY", 10_000)


@pytest.mark.usefixtures("small_limit")
def test_a_value_too_large_to_be_read_back_is_refused_at_register_with_its_path_and_size(
    tmp_path: Path,
) -> None:
    said = r"notes.seen, with 20,000 values, is too large .* notes has 0 MiB of JSON.* keep it as a tensor or a numpy array \[SG401\]"
    with pytest.raises(StateError, match=said), guarded(tmp_path, {"notes": {"seen": ROWS, "few": [1]}}):
        pass


@pytest.mark.usefixtures("small_limit")
def test_a_value_that_grows_too_large_is_said_once_at_its_boundary(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notes: dict[str, Any] = {"seen": [], "few": [1]}
    (line,) = logged(caplog, notes, lambda: notes["seen"].extend(ROWS))
    assert line.startswith("no save is possible: notes.seen, with 20,000 values, is too large")


def test_a_million_plain_values_have_one_look_that_is_taken_apart_where_it_differs() -> None:
    value = {"rows": [[1, 2.0], (True, "a")], "more": {"x": [None]}}
    other = {"rows": [[1, 2.0], (1, "a")], "more": {"x": [None]}}
    assert len(looks({"notes": value, "t": torch.zeros(1)})) == 3
    assert [*differing(looks(value), looks(other))] == [("rows", 1, 0)]
    assert [*differing(looks(value), looks({**value, "t": torch.zeros(1)}))] == [("t",)]
    assert [*differing(looks([0.0]), looks([-0.0]))] == [(0,)]
