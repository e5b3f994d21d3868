"""The mark of a batch differs where its values do, in whatever holds them; and a restart reports it only where that is wrong."""

from __future__ import annotations

import dataclasses
import types
from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import spotguard
from spotguard.hooks.state.parts.loaders.batch_mark import marked
from tests.fakes.passes import Loop, Rows, said, unequal

pytestmark = pytest.mark.torch


@dataclasses.dataclass
class Sample:
    x: Any
    label: str = "one"


class Slots:
    __slots__ = ("x",)

    def __init__(self, x: Any) -> None:
        self.x = x


class Graph:
    """As a batch of torch_geometric: an object whose store is an object."""

    def __init__(self, x: Any) -> None:
        self._store = types.SimpleNamespace(mapping={"x": x})


class Image(torch.Tensor):
    """A subclass, as torchvision's."""


Pair = namedtuple("Pair", ["x", "y"])

#: Batches made of one number.
BATCHES: dict[str, Callable[[int], Any]] = {
    "number": lambda n: n,
    "float": float,
    "text": lambda n: f"sample {n}",
    "array": lambda n: np.full((3, 3), n),
    "numpy's number": lambda n: np.float32(n),
    "view of an array": lambda n: np.full((4, 4), n)[:, ::2],
    "tensor": lambda n: torch.full((3,), n),
    "subclass": lambda n: torch.full((3,), n).as_subclass(Image),
    "mapping": lambda n: UserDict(x=torch.full((3,), n)),
    "proxy": lambda n: types.MappingProxyType({"x": n}),
    "dataclass": lambda n: Sample(torch.full((3,), n)),
    "slots": lambda n: Slots(n),
    "namedtuple": lambda n: Pair(0, n),
    "object in an object": lambda n: Graph(np.array([n])),
    "nested": lambda n: [{"a": [Sample({"x": (n,)})]}],
}


@pytest.mark.parametrize("kind", BATCHES)
def test_a_mark_differs_with_the_values(kind: str) -> None:
    make = BATCHES[kind]
    assert marked(make(1), 0) == marked(make(1), 0)
    assert marked(make(1), 0) != marked(make(2), 0)
    assert marked(make(1), 0) != marked(make(1), 1)


def test_a_batch_of_anything_has_a_mark() -> None:
    """What has no values to read, or is a circle."""
    circle: list[Any] = []
    circle.append(circle)
    for batch in (None, object(), circle, {1, 2}, lambda: 0, torch.empty(0), np.array([object()]), type):
        assert marked(batch, 3) == marked(batch, 3)


class Augmented(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return index / 20 + torch.rand(4)


def numpys() -> float:
    return float(np.random.rand())


class ByNumpy(Augmented):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), index / 20 + numpys())


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (number / 20 + torch.rand(4) for number in range(20))


@pytest.mark.parametrize("data", [Augmented, ByNumpy, Stream])
def test_augmentation_in_the_main_process_is_exact_and_reports_nothing(
    data: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Its random numbers come between those of dropout, so the batches that are dropped are others."""

    def script(loop: Loop) -> None:
        train = loop.wrap(DataLoader(data(), 4))
        loop.restore(train=train)
        for _ in range(train.epoch, 3):
            for x in train:
                loop.learn(x)

    assert unequal(script, (3, 5, 7)) == []
    assert said(caplog) == []


class Unseeded(Rows):
    """Its order follows from nothing that is saved; its noise does."""

    starts = 0

    def __init__(self) -> None:
        super().__init__()
        Unseeded.starts += 1
        self.first = Unseeded.starts

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[(index + self.first) % 20] + torch.rand(4)


def test_another_first_batch_is_reported_beside_augmentation(caplog: pytest.LogCaptureFixture) -> None:
    """The generators before a pass's first batch are known, so it has to be the same."""

    def script(loop: Loop) -> None:
        train = loop.wrap(DataLoader(Unseeded(), 4))
        loop.restore(train=train)
        for x in train:
            loop.learn(x)

    assert unequal(script, (3,)) == [3]
    (line,) = said(caplog)
    assert line.startswith("train's first 3 batches are not those of before the restart")
    assert line.index("without a seed") < line.index("counts passes") < line.index("another order")


def test_a_resumed_pass_keeps_the_mark_of_its_batches() -> None:
    first = spotguard.ResumableLoader(DataLoader(Rows(), 4))
    batches = iter(first)
    next(batches), next(batches)
    resumed = spotguard.ResumableLoader(DataLoader(Rows(), 4))
    resumed.load_state_dict(first.state_dict())
    rest = iter(resumed)
    next(batches), next(rest)
    assert resumed.state_dict()["marks"] == first.state_dict()["marks"]
