"""A resumed pass goes on with the batches and the random numbers of an undisturbed run, whatever draws at its beginning."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import spotguard
from spotguard.providers.errors import UsageError
from tests.fakes.passes import Loop, Rows, Script, said, unequal
from tests.tiers import few_fast

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")]

#: In the first pass of five, at its last batch, and in the second.
CUTS = (3, 5, 7)


def shuffled(count: int = 20, **how: Any) -> DataLoader[torch.Tensor]:
    return DataLoader(Rows(count), 4, shuffle=True, **how)


def zipped(loop: Loop, a: Any, b: Any) -> None:
    a, b = loop.wrap(a), loop.wrap(b)
    loop.restore(a=a, b=b)
    for _ in range(a.epoch, 3):
        for x, y in zip(a, b, strict=False):
            loop.learn(x[:2] - 2 * y[:2])


def a_draw_between(loop: Loop) -> None:
    a = loop.wrap(shuffled())
    loop.restore(a=a)
    for _ in range(a.epoch, 3):
        batches = iter(a)
        noise = torch.rand(1)
        for x in batches:
            loop.learn(x + noise)


def a_held_iterator(loop: Loop) -> None:
    """Its pass begins long before its first batch, and training goes on in between."""
    a, b = loop.wrap(shuffled()), loop.wrap(shuffled(40))
    loop.restore(a=a, b=b)
    others = iter(b)
    for _ in range(a.epoch, 3):
        for x in a:
            if loop.done % 3 == 2:
                x = x + next(others)
            loop.learn(x)


def other() -> torch.Tensor:
    return torch.rand(4, 4)


Turn = Callable[[int, Iterator[torch.Tensor], Iterator[torch.Tensor]], torch.Tensor]


def held(turn: Turn, steps: bool = False, noise: bool = False) -> Script:
    """Two iterators that are made before the loop, and read by some turns; some draw their data themselves."""

    def script(loop: Loop) -> None:
        a, b = loop.wrap(shuffled(60)), loop.wrap(shuffled(60))
        loop.restore(a=a, b=b)
        one, two = iter(a), iter(b)
        added = torch.rand(1) if noise else 0
        for n in loop.turns(12) if steps else range(loop.done, 12):
            loop.learn(turn(n, one, two) + added)

    return script


def rarely(n: int, one: Iterator[torch.Tensor], two: Iterator[torch.Tensor]) -> torch.Tensor:
    return next(one) if n % 3 == 2 else other()


def at_first(n: int, one: Iterator[torch.Tensor], two: Iterator[torch.Tensor]) -> torch.Tensor:
    return next(two) + next(one) if n % 3 == 0 else other()


def late(n: int, one: Iterator[torch.Tensor], two: Iterator[torch.Tensor]) -> torch.Tensor:
    return next(one) if n > 8 else other()


def in_turns(n: int, one: Iterator[torch.Tensor], two: Iterator[torch.Tensor]) -> torch.Tensor:
    return (next(one), next(two), other())[n % 3] if n else next(two) + next(one)


def after_a_draw(n: int, one: Iterator[torch.Tensor], two: Iterator[torch.Tensor]) -> torch.Tensor:
    return other() + next(one)


def sometimes_after_a_draw(n: int, one: Iterator[torch.Tensor], two: Iterator[torch.Tensor]) -> torch.Tensor:
    return other() + (next(one) if n % 2 == 0 else 0)


HELD: dict[str, Script] = {
    "not for ten steps": held(late),
    "every third step": held(rarely),
    "the first step, and every third": held(at_first),
    "in turns": held(in_turns),
    "behind a draw": held(after_a_draw),
    "steps, not for ten": held(late, steps=True, noise=True),
    "steps, every third": held(at_first, steps=True, noise=True),
    "steps, in turns": held(in_turns, steps=True, noise=True),
    "steps, behind a draw": held(after_a_draw, steps=True, noise=True),
    "steps, sometimes behind a draw": held(sometimes_after_a_draw, steps=True, noise=True),
}


@pytest.mark.parametrize("case", few_fast(HELD, 6))
def test_an_iterator_that_waits_moves_no_generator_of_training(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert unequal(HELD[case], (1, 2, 5, 9)[case == "behind a draw" :]) == []
    assert said(caplog) == []


def inner(loop: Loop) -> None:
    a, b = loop.wrap(shuffled()), loop.wrap(shuffled(8))
    loop.restore(a=a, b=b)
    for _ in range(a.epoch, 3):
        for x in a:
            loop.learn(x, *b)


def made_late(loop: Loop) -> None:
    """The second loader's iterator is made behind draws of the turn, in some turns alone."""
    a, b = loop.wrap(shuffled()), loop.wrap(shuffled(28))
    loop.restore(a=a, b=b)
    step, held = loop.done, None
    for _ in range(a.epoch, 3):
        for x in a:
            x = x + other()
            if step % 4 == 0:
                held = held or iter(b)
                x = x + next(held)
            loop.learn(x)
            step += 1


TWO: dict[str, Script] = {
    "the second is made late": made_late,
    "zip": lambda loop: zipped(loop, shuffled(), shuffled()),
    "zip, the second is longer": lambda loop: zipped(loop, shuffled(), shuffled(28)),
    "a draw between": a_draw_between,
    "a held iterator": a_held_iterator,
    "zip, one in order": lambda loop: zipped(loop, DataLoader(Rows(), 4), shuffled()),
    "zip, with workers": lambda loop: zipped(loop, shuffled(num_workers=1), shuffled()),
    "zip, one generator": lambda loop: (
        lambda own: zipped(loop, shuffled(generator=own), shuffled(generator=own))
    )(torch.Generator().manual_seed(3)),
    "a pass in each step": inner,
}


@pytest.mark.parametrize("case", few_fast(TWO, 5))
def test_draws_at_the_beginning_of_a_pass_leave_it_exact(case: str, caplog: pytest.LogCaptureFixture) -> None:
    assert unequal(TWO[case], CUTS) == []
    assert said(caplog) == []


class Eager(Sampler[int]):
    def __init__(self) -> None:
        """Nothing to keep."""

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(20).tolist())


class Lazy(Eager):
    def __iter__(self) -> Iterator[int]:
        order = list(range(20))
        random.shuffle(order)
        yield from order


#: Samplers without a state, and torchdata's own ones.
SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "shuffle": lambda: {"shuffle": True},
    "random": lambda: {"sampler": RandomSampler(range(20))},
    "with replacement": lambda: {"sampler": RandomSampler(range(20), replacement=True)},
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0] * 20, 20)},
    "subset": lambda: {"sampler": SubsetRandomSampler(range(20))},
    "eager": lambda: {"sampler": Eager()},
    "lazy": lambda: {"sampler": Lazy()},
    "order": dict,
}


def passes(loop: Loop, loader: Any) -> None:
    a = loop.wrap(loader)
    loop.restore(a=a)
    while loop.done < 15:
        for x in a:
            loop.learn(x)


@pytest.mark.parametrize("sampler", few_fast(SAMPLERS, 3))
def test_a_stateful_loader_is_exact_with_any_sampler(sampler: str, caplog: pytest.LogCaptureFixture) -> None:
    data = pytest.importorskip("torchdata.stateful_dataloader")

    def script(loop: Loop) -> None:
        passes(loop, data.StatefulDataLoader(Rows(), 4, **SAMPLERS[sampler]()))

    assert unequal(script, (*CUTS, 12)) == []
    assert said(caplog) == []


def test_a_batch_sampler_of_the_scripts_own_is_exact(caplog: pytest.LogCaptureFixture) -> None:
    data = pytest.importorskip("torchdata.stateful_dataloader")

    def script(loop: Loop) -> None:
        sampler = BatchSampler(Eager(), 4, drop_last=False)
        passes(loop, data.StatefulDataLoader(Rows(), batch_sampler=sampler))

    assert unequal(script, CUTS) == []
    assert said(caplog) == []


NODES: dict[str, Callable[[Any], Any]] = {
    "in order": lambda tn: tn.MapStyleWrapper(Rows(), torch.utils.data.SequentialSampler(range(20))),
    "shuffled": lambda tn: tn.MapStyleWrapper(Rows(), RandomSampler(range(20))),
    "eager": lambda tn: tn.MapStyleWrapper(Rows(), Eager()),
    "by epoch": lambda tn: tn.MapStyleWrapper(
        Rows(), torch.utils.data.DistributedSampler(Rows(), num_replicas=1, rank=0)
    ),
    "an iterable": lambda tn: tn.IterableWrapper([*Rows().rows]),
}


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("kind", few_fast(NODES, 2))
def test_nodes_go_on_where_they_were(kind: str, again: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Behind a pass's last batch, too, where torchdata's own loader begins the next one unasked."""
    nodes = pytest.importorskip("torchdata.nodes")

    def script(loop: Loop) -> None:
        batches = nodes.Mapper(nodes.Batcher(NODES[kind](nodes), 4), torch.stack)
        a = loop.wrap(nodes.Loader(batches, restart_on_stop_iteration=again))
        loop.restore(a=a)
        for _ in range(a.epoch, 3):
            for x in a:
                loop.learn(x)
            torch.rand(1)  # once behind each pass

    assert unequal(script, (*CUTS, 10)) == []
    assert said(caplog) == []


class Own:
    """A loader that a script has written, with a state."""

    def __init__(self) -> None:
        self.at = self.passes = 0

    def order(self) -> list[int]:
        generator = torch.Generator().manual_seed(self.passes)
        return torch.randperm(20, generator=generator).tolist()

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = self.order()
        while self.at < 20:
            self.at += 4
            yield Rows().rows[order[self.at - 4 : self.at]]
        self.at, self.passes = 0, self.passes + 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.passes = state["at"], state["passes"]


class OwnDrawing(Own):
    """Its order follows from torch's generator."""

    def order(self) -> list[int]:
        return torch.randperm(20).tolist()


class OwnWithout:
    """No state at all."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (rows for rows in Rows().rows[torch.randperm(20)].split(4))


class OwnCounting(Own):
    """Only the passes are in its state."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from Rows().rows[self.order()].split(4)
        self.passes += 1

    def state_dict(self) -> dict[str, int]:
        return {"passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.passes = state["passes"]


class OwnEmpty(OwnWithout):
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """There is nothing to load."""


class OwnConstant(OwnEmpty):
    """Its state is what it was made from, and an order that is drawn once."""

    def __init__(self) -> None:
        self.order = torch.randperm(20)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(Rows().rows[self.order].split(4))

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order, "seed": 3}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order = state["order"]


class OwnLive(OwnCounting):
    """Its state is the live one."""

    def __init__(self) -> None:
        super().__init__()
        self.state = {"passes": 0}

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from super().__iter__()
        self.state["passes"] = self.passes

    def state_dict(self) -> dict[str, int]:
        return self.state

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.state, self.passes = dict(state), state["passes"]


@pytest.mark.parametrize("kind", [Own, OwnDrawing, OwnWithout, OwnCounting, OwnEmpty, OwnConstant, OwnLive])
def test_a_loader_of_the_scripts_own_goes_on_where_it_was(
    kind: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert unequal(lambda loop: passes(loop, kind()), (1, *CUTS, 6, 10, 12)) == []
    assert said(caplog) == []


# --- the position, and passes with a limit -----------------------------------------------------------------------


def test_the_position_is_that_of_the_next_iterator() -> None:
    """Of an interrupted pass only; behind a break the next one begins at 0, as with a plain loader."""
    loader = spotguard.ResumableLoader(DataLoader(Rows(), 4, num_workers=1))
    assert loader.position == 0
    for number, _ in enumerate(loader, loader.position):
        loader.at_boundary()
        if number == 2:
            break
    assert loader.position == 0
    resumed = spotguard.ResumableLoader(DataLoader(Rows(), 4, num_workers=1))
    resumed.load_state_dict(loader.state_dict())
    assert resumed.position == 3
    next(iter(resumed))  # a look is no pass
    assert resumed.position == 3
    numbers = [number for number, _ in enumerate(resumed, resumed.position)]
    assert (numbers, resumed.position, resumed.epoch) == ([3, 4], 0, 1)


def by_position(loop: Loop) -> None:
    """Schedules by the batch's number, and accumulation of two batches with a tail that is stepped on its own."""
    a = loop.wrap(shuffled(28))
    loop.restore(a=a)
    for _ in range(a.epoch, 3):
        for number, x in enumerate(a, a.position):
            loop.optimizer.param_groups[0]["lr"] = 0.01 / (1 + number)
            loop.backward(x)
            if number % 2 == 1 or number + 1 == len(a):
                loop.step()
                loop.optimizer.zero_grad()


def limited(loop: Loop) -> None:
    """What follows a pass is done once, also if the cut is behind its last batch."""
    a = loop.wrap(shuffled(28), limit=3)
    notes = {"behind": 0}
    loop.restore(a=a, notes=notes)
    for epoch in range(a.epoch, 4):
        assert len(a) == 3
        for x in a:
            loop.learn(x)
        if notes["behind"] == epoch:
            notes["behind"] += 1
            loop.optimizer.param_groups[0]["lr"] *= 0.9
    assert (loop.done, notes["behind"]) == (12, 4)


def a_limited_stateful_loader(loop: Loop) -> None:
    data = pytest.importorskip("torchdata.stateful_dataloader")
    a = loop.wrap(data.StatefulDataLoader(Rows(28), 4, shuffle=True), limit=3)
    loop.restore(a=a)
    for _ in range(a.epoch, 4):
        for x in a:
            loop.learn(x)
        torch.rand(1)


def cycled(loop: Loop) -> None:
    a = loop.wrap(shuffled(12))
    loop.restore(a=a)

    def batches() -> Iterator[torch.Tensor]:
        while True:
            yield from a

    endless = batches()
    while loop.done < 12:
        loop.learn(next(endless))


def ended_by_a_range(loop: Loop, *, behind: bool) -> None:
    """Two batches to a step: the fifth one belongs to none, and its gradient goes into the next step."""
    a = loop.wrap(shuffled(28))
    loop.restore(a=a)
    for _ in range(a.epoch, 4):
        numbers = range(a.position, 5)
        for number, x in (
            ((n, x) for x, n in zip(a, numbers, strict=False)) if behind else zip(numbers, a, strict=False)
        ):
            loop.backward(x)
            if number % 2 == 1:
                loop.step()
                loop.optimizer.zero_grad()


POSITIONS: dict[str, Script] = {
    "position": by_position,
    "limit": limited,
    "limit, stateful": a_limited_stateful_loader,
    "cycle": cycled,
}


@pytest.mark.parametrize("behind", [True, False])
def test_a_pass_that_another_iterator_ends_leaves_its_tail_to_the_next_step(behind: bool) -> None:
    assert unequal(lambda loop: ended_by_a_range(loop, behind=behind), (1, 2, 3, 4)) == []


@pytest.mark.parametrize("case", POSITIONS)
def test_loops_by_position_and_limit_are_exact(case: str, caplog: pytest.LogCaptureFixture) -> None:
    assert unequal(POSITIONS[case], (2, 3, 4, 7)) == []
    assert said(caplog) == []


@pytest.mark.parametrize("limit", [0, -1, True, 2.0, "3"])
def test_a_limit_is_a_number_of_batches(limit: Any) -> None:
    with pytest.raises(UsageError, match="expected the batches of a pass"):
        spotguard.ResumableLoader(shuffled(), limit=limit)


def test_a_stream_with_a_limit_has_its_length() -> None:
    assert len(spotguard.ResumableLoader(OwnWithout(), limit=3)) == 3
    assert len(spotguard.ResumableLoader(shuffled(), limit=30)) == 5


def test_progress_counts_the_batches_that_training_has_taken() -> None:
    loader = spotguard.ResumableLoader(shuffled(num_workers=1))
    batches = iter(loader)
    assert loader.progress == (0, 0), "what workers load ahead counts for nothing"
    next(batches), next(batches)
    assert loader.progress == (0, 2)
