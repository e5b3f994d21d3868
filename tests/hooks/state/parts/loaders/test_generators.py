"""Generators inside a loader, its dataset and its transforms go on with the very next number."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate

import spotguard
from spotguard.hooks.state.parts.loaders.generators import OwnGenerators
from tests.fakes.passes import Loop, said, unequal
from tests.fakes.store import FakeStore
from tests.tiers import few_fast

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")]

Draw = Callable[[], float]
GLOBAL = np.random.default_rng(0)


class Noisy(Dataset[torch.Tensor]):
    def __init__(self, draw: Draw) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), index / 20 + self.draw())


class Compose:
    def __init__(self, *transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self) -> float:
        return float(sum(each() for each in self.transforms))


class Slotted:
    __slots__ = ("rng",)

    def __init__(self) -> None:
        self.rng = random.Random(2)

    def __call__(self) -> float:
        return self.rng.random()


def closed_over() -> Draw:
    rng = np.random.RandomState(3)
    return lambda: float(rng.rand())


def by_a_global_name() -> Draw:
    GLOBAL.bit_generator.state = np.random.default_rng(0).bit_generator.state  # as in a new process
    return lambda: float(GLOBAL.random())


def drawn(rng: np.random.Generator) -> float:
    return float(rng.random())


def of_children(rng: np.random.Generator) -> float:
    return float(rng.spawn(1)[0].random())


PLACES: dict[str, Callable[[], Draw]] = {
    "random.Random": lambda: random.Random(1).random,
    "numpy's Generator": lambda: functools.partial(drawn, np.random.default_rng(1)),
    "numpy's MT19937": lambda: functools.partial(drawn, np.random.Generator(np.random.MT19937(1))),
    "numpy's children": lambda: functools.partial(of_children, np.random.default_rng(1)),
    "a sequence of seeds": lambda: (lambda own: lambda: drawn(np.random.default_rng(own.spawn(2)[1])))(
        np.random.SeedSequence(1)
    ),
    "torch's": lambda: (lambda own: lambda: torch.rand(1, generator=own).item())(
        torch.Generator().manual_seed(1)
    ),
    "transforms": lambda: Compose(Compose(random.Random(1).random), random.Random(2).random),
    "slots": Slotted,
    "a closure": closed_over,
    "a global name": by_a_global_name,
}


class Streamed(IterableDataset[torch.Tensor]):
    def __init__(self, draw: Draw) -> None:
        self.draw = draw

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.full((4,), number / 20 + self.draw()) for number in range(20))


class Shuffler(Sampler[int]):
    def __init__(self, draw: Draw) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(range(20), key=lambda _: self.draw()))


def collating(draw: Draw) -> Callable[[Any], Any]:
    return lambda samples: default_collate(samples) + draw()


LOADERS: dict[str, Callable[[Draw], DataLoader[torch.Tensor]]] = {
    "dataset": lambda draw: DataLoader(Noisy(draw), 4, shuffle=True),
    "stream": lambda draw: DataLoader(Streamed(draw), 4),
    "sampler": lambda draw: DataLoader(Noisy(lambda: 0.0), 4, sampler=Shuffler(draw)),
    "collate": lambda draw: DataLoader(Noisy(lambda: 0.0), 4, collate_fn=collating(draw)),
    "subset": lambda draw: DataLoader(torch.utils.data.Subset(Noisy(draw), range(20)), 4),
    "workers": lambda draw: DataLoader(Noisy(draw), 4, num_workers=1),
}


def script(loader: Callable[[], Any]) -> Callable[[Loop], None]:
    def run(loop: Loop) -> None:
        train = loop.wrap(loader())
        loop.restore(train=train)
        for _ in range(train.epoch, 3):
            for x in train:
                loop.learn(x)

    return run


@pytest.mark.parametrize(
    ("place", "loader"),
    few_fast(
        [
            *((place, "dataset") for place in PLACES),
            *(("random.Random", loader) for loader in LOADERS if loader != "dataset"),
        ],
        8,
    ),
)
def test_a_generator_inside_a_loader_goes_on(
    place: str, loader: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert unequal(script(lambda: LOADERS[loader](PLACES[place]())), (3, 5, 7)) == []
    assert said(caplog) == []


def test_a_generator_in_the_dataset_of_a_stateful_loader_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    data = pytest.importorskip("torchdata.stateful_dataloader")
    kinds: list[Callable[[], Any]] = [
        lambda: data.StatefulDataLoader(Noisy(random.Random(1).random), 4, shuffle=True),
        lambda: data.StatefulDataLoader(Streamed(random.Random(1).random), 4),
        lambda: data.StatefulDataLoader(Noisy(random.Random(1).random), 4, shuffle=True, num_workers=1),
        lambda: data.StatefulDataLoader(Noisy(random.random), 4, shuffle=True, num_workers=1),
    ]
    for kind in kinds:
        assert unequal(script(kind), (1, 3, 7)) == []
    assert said(caplog) == []


def test_a_generator_without_a_state_is_named_at_register(caplog: pytest.LogCaptureFixture) -> None:
    Loop(FakeStore()).live(script(lambda: DataLoader(Noisy(random.SystemRandom().random), 4)))
    (line,) = said(caplog)
    assert line.startswith("train.dataset.draw.__self__ is a SystemRandom, whose state cannot be saved")


def test_the_global_generators_are_left_to_their_part() -> None:
    class Holder:
        all = 0

        def __init__(self) -> None:
            self.held = [torch.default_generator, random._inst, np.random.mtrand._rand]

    assert OwnGenerators(Holder()).states() == {}


def test_one_generator_at_two_places_is_one_state() -> None:
    own = torch.Generator()
    loader = spotguard.ResumableLoader(DataLoader(range(4), shuffle=True, generator=own))  # type: ignore[arg-type]
    assert len(loader.own_generators()) == 1
