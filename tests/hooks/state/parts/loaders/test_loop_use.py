"""Loops that no restart repeats are named once, with a remedy that makes them exact; others log nothing."""

from __future__ import annotations

import itertools
import queue
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

import spotguard
from tests.fakes.passes import WIDTH, Loop, Rows, Script, said, unequal
from tests.fakes.store import FakeStore
from tests.tiers import few_fast

pytestmark = pytest.mark.torch

CUTS = (3, 9)


def loader(count: int = 60, **how: Any) -> DataLoader[torch.Tensor]:
    return DataLoader(Rows(count), 4, shuffle=True, **how)


def loop_of(turn: Any, raw: Any = loader, **how: Any) -> Script:
    """A script of three passes, each by a function of the loop, the registered loader and the one inside."""

    def script(loop: Loop) -> None:
        inside = raw()
        train = loop.wrap(inside, **how)
        loop.restore(train=train)
        while loop.done < 24:
            turn(loop, train, inside)

    return script


def plain(loop: Loop, train: Any, raw: Any) -> None:
    for x in train:
        loop.learn(x)


def ahead(loop: Loop, train: Any, raw: Any) -> None:
    batches = iter(train)
    following = next(batches, None)
    while following is not None:
        x, following = following, next(batches, None)
        loop.learn(x)


def ahead_by_two(loop: Loop, train: Any, raw: Any) -> None:
    batches = iter(train)
    queue = deque(itertools.islice(batches, 2))
    while queue:
        queue.extend(itertools.islice(batches, 1))
        x = queue.popleft()
        loop.learn(x)


class Prefetcher:
    """As scripts write it around a stream of CUDA."""

    def __init__(self, batches: Iterator[torch.Tensor]) -> None:
        self.batches = batches
        self.preload()

    def preload(self) -> None:
        self.following = next(self.batches, None)

    def next(self) -> torch.Tensor | None:
        batch = self.following
        self.preload()
        return batch


def a_prefetcher(loop: Loop, train: Any, raw: Any) -> None:
    batches = Prefetcher(iter(train))
    x = batches.next()
    while x is not None:
        loop.learn(x)
        x = batches.next()


def listed(loop: Loop, train: Any, raw: Any) -> None:
    for x in list(train):
        loop.learn(x)


def inside(loop: Loop, train: Any, raw: Any) -> None:
    for x in raw:
        loop.learn(x)


def inside_held(loop: Loop, train: Any, raw: Any) -> None:
    batches = iter(raw)
    for _ in range(len(raw)):
        loop.learn(next(batches))


def sliced(loop: Loop, train: Any, raw: Any) -> None:
    for x in itertools.islice(train, 5):
        loop.learn(x)


def broken_off(loop: Loop, train: Any, raw: Any) -> None:
    for number, x in enumerate(train, train.position):
        loop.learn(x)
        if number == 4:
            break


def counted_off(loop: Loop, train: Any, raw: Any) -> None:
    for _, x in zip(range(5), train, strict=False):
        loop.learn(x)


def broken_off_beside_a_validation(loop: Loop, train: Any, raw: Any) -> None:
    """The validation's pass ends while the training's is open, and does not end it."""
    validation = spotguard.ResumableLoader(loader(8))
    for number, x in enumerate(train, train.position):
        if number == 1:
            list(validation)
        loop.learn(x)
        if number == 4:
            break


def counted_off_behind(loop: Loop, train: Any, raw: Any) -> None:
    """It takes one batch more than the range has numbers."""
    for x, _ in zip(train, range(5), strict=False):
        loop.learn(x)


def cycled(loop: Loop, train: Any, raw: Any) -> None:
    for x in itertools.cycle(train):
        loop.learn(x)
        if loop.done == 24:
            break


def three(count: int = 12) -> DataLoader[torch.Tensor]:
    return loader(count)


LIMITED = loop_of(plain, limit=5)
#: What is said, of which value, and the script as the message has it.
NAMED: dict[str, tuple[Script, str, Script]] = {
    "ahead": (loop_of(ahead), "train: batches are taken before the turn", loop_of(plain)),
    "inside": (
        loop_of(inside),
        "train is registered and delivers nothing, and the DataLoader",
        loop_of(plain),
    ),
    "islice": (loop_of(sliced), "train: the loop leaves a pass behind batch 5 .* limit=5", LIMITED),
    "cycle": (
        loop_of(cycled, three),
        "train: its batches are kept, .* `while True: yield from train`",
        loop_of(plain, three),
    ),
    "list": (loop_of(listed), "train: batches are taken before", loop_of(plain)),
    "break beside a validation": (
        loop_of(broken_off_beside_a_validation),
        "train: the loop leaves a pass behind batch 5 .* limit=5",
        LIMITED,
    ),
    "ahead by two": (loop_of(ahead_by_two), "train: batches are taken before", loop_of(plain)),
    "prefetcher": (loop_of(a_prefetcher), "train: batches are taken before", loop_of(plain)),
    "inside, held": (loop_of(inside_held), "train is registered and delivers nothing", loop_of(plain)),
    "break": (loop_of(broken_off), "train: the loop leaves a pass behind batch 5 .* limit=5", LIMITED),
    "zip before a range": (
        loop_of(counted_off_behind),
        "train: the loop leaves a pass behind batch 5 .* limit=5",
        LIMITED,
    ),
    "cycle over a list": (
        loop_of(cycled, lambda: [*loader(12)]),
        "train: its batches are kept, .* `while True: yield from train`",
        loop_of(plain, lambda: [*loader(12)]),
    ),
    "zip with a range": (loop_of(counted_off), "train: the loop leaves a pass .* limit=5", LIMITED),
}


# The other rows go the same way, and each is five lives.
@pytest.mark.parametrize("case", few_fast(NAMED, 6))
def test_a_loop_that_no_restart_repeats_is_named_once(case: str, caplog: pytest.LogCaptureFixture) -> None:
    """And as the message has it, the resumed run is the undisturbed one."""
    script, message, remedy = NAMED[case]
    Loop(FakeStore()).live(script)
    assert [bool(re.search(message, line)) for line in said(caplog)] == [True]
    assert unequal(remedy, CUTS) == []
    assert said(caplog) == []


# --- exact twins -------------------------------------------------------------------------------------------------


def accumulating(loop: Loop, train: Any, raw: Any) -> None:
    for number, x in enumerate(train, train.position):
        loop.backward(x)
        if number % 3 == 2:
            loop.step()
            loop.optimizer.zero_grad()


def carrying(loop: Loop, train: Any, raw: Any) -> None:
    """Four batches to a step, and fifteen to a pass: the step takes the rest of the pass before along."""
    micro = 0
    while loop.done < 24:
        for x in train:
            loop.backward(x)
            micro += 1
            if micro % 4 == 0:
                loop.step()
                loop.optimizer.zero_grad()


def in_pairs(loop: Loop, train: Any, raw: Any) -> None:
    batches = iter(train)
    for x, y in zip(batches, batches, strict=False):
        loop.learn(x, y)


def a_first_look(loop: Loop, train: Any, raw: Any) -> None:
    next(iter(train))
    plain(loop, train, raw)


def with_the_last_batch(loop: Loop, train: Any, raw: Any) -> None:
    """The script keeps batches, and takes none ahead."""
    kept = []
    for x in train:
        kept.append(x)
        loop.learn(x, kept[-1])


def broken_off_before_the_batch(loop: Loop, train: Any, raw: Any) -> None:
    for number, x in enumerate(train, train.position):
        if number == 5:
            break
        loop.learn(x)


def counted_off_by_position(loop: Loop, train: Any, raw: Any) -> None:
    """The range ends the pass, behind one batch more."""
    for x, _ in zip(train, range(train.position, 5), strict=False):
        loop.learn(x)


def budgeted(loop: Loop, train: Any, raw: Any) -> None:
    """A step takes as many batches as its budget of samples, which grows from step to step; a pass's rest goes to the next one."""
    micro = 0
    while loop.done < 24:
        for x in train:
            loop.backward(x)
            micro += 1
            if micro == 2 + loop.done % 3:
                loop.step()
                loop.optimizer.zero_grad()
                micro = 0


def by_turns_with_other_data(loop: Loop, train: Any, raw: Any) -> None:
    for x in train:
        loop.learn(x)
    for _ in range(3):
        loop.learn(torch.rand(4, 4))


def beside_a_validation(loop: Loop, train: Any, raw: Any) -> None:
    for x in train:
        if loop.done % 4 == 3:
            evaluated(loop)
        loop.learn(x)


def evaluated(loop: Loop) -> None:
    with torch.no_grad():
        for x in loop.validation:  # type: ignore[attr-defined]
            loop.model(x)


def with_a_validation(loop: Loop) -> None:
    """Registered, never trained on, and read at few steps."""
    train, loop.validation = loop.wrap(loader()), loop.wrap(loader(12))  # type: ignore[attr-defined]
    loop.restore(train=train, validation=loop.validation)  # type: ignore[attr-defined]
    while loop.done < 24:
        beside_a_validation(loop, train, None)


def validated_before(loop: Loop) -> None:
    """By workers that stay, and by a part of a pass."""
    train, loop.validation = loop.wrap(loader()), loop.wrap(stays(Rows(8)))  # type: ignore[attr-defined]
    list(loop.validation)  # type: ignore[attr-defined]
    loop.restore(train=train, validation=loop.validation)  # type: ignore[attr-defined]
    while loop.done < 24:
        plain(loop, train, None)


def by_hand(loop: Loop, train: Any, raw: Any) -> None:
    batches = iter(train)
    while (x := next(batches, None)) is not None:
        loop.learn(x)


TWINS: dict[str, Script] = {
    "plain": loop_of(plain),
    "accumulating": loop_of(accumulating),
    "carrying": loop_of(carrying),
    "in pairs": loop_of(in_pairs, lambda: loader(64)),
    "a first look": loop_of(a_first_look),
    "batches are kept": loop_of(with_the_last_batch),
    "break before the batch": loop_of(broken_off_before_the_batch),
    "zip before a range": loop_of(counted_off_by_position),
    "a budget": loop_of(budgeted),
    "a list of batches": loop_of(by_turns_with_other_data, lambda: [*loader(20)]),
    "a list of tensors": loop_of(
        by_turns_with_other_data, lambda: DataLoader(cast("Any", [*Rows(20).rows]), batch_size=None)
    ),
    "validated before": validated_before,
    "validation": with_a_validation,
    "by hand": loop_of(by_hand),
    "workers": loop_of(plain, lambda: loader(num_workers=1)),
}


@pytest.mark.parametrize("case", few_fast(TWINS, 5))
def test_an_exact_loop_logs_nothing(case: str, caplog: pytest.LogCaptureFixture) -> None:
    assert unequal(TWINS[case], (*CUTS, 5)) == []
    assert said(caplog) == []


# --- a tail that belongs to no step ------------------------------------------------------------------------------


def with_a_tail(loop: Loop, train: Any, raw: Any) -> None:
    loop.optimizer.zero_grad()
    for number, x in enumerate(train, train.position):
        loop.backward(x)
        if number % 4 == 3:
            loop.step()
            loop.optimizer.zero_grad()


def test_batches_behind_the_last_step_of_a_pass_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """Fifteen batches, four to a step: the run is exact, and three of each pass train nothing."""
    Loop(FakeStore()).live(loop_of(with_a_tail))
    (line,) = said(caplog)
    assert "train: the last 3 batches of a pass came behind its last guard.step()" in line
    assert "limit=12" in line
    assert unequal(loop_of(with_a_tail, limit=12), (2, 4)) == []
    assert said(caplog) == []


# --- workers that stay -------------------------------------------------------------------------------------------


class Drawing(Dataset[torch.Tensor]):
    """Samples with noise, from the generator that torch seeds for each worker, or from one of its own."""

    def __init__(self, own: bool = False) -> None:
        self.own = torch.Generator().manual_seed(1) if own else None

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        assert get_worker_info() is not None
        return index / 24 + torch.rand(4, generator=self.own)


def stays(data: Any, stay: bool = True) -> DataLoader[torch.Tensor]:
    return DataLoader(data, 4, shuffle=True, num_workers=1, persistent_workers=stay)


@pytest.mark.parametrize("own", [False, True])
def test_random_numbers_of_workers_that_stay_are_named_at_the_second_pass(
    own: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def script(loop: Loop, stay: bool = True) -> None:
        train = loop.wrap(stays(Drawing(own), stay))
        loop.restore(train=train)
        while loop.done < 15:
            for x in train:
                assert loop.done >= 6 or not stay or not said(caplog)
                loop.learn(x)

    Loop(FakeStore()).live(script)
    (line,) = said(caplog)
    assert "train: its dataset draws random numbers in workers that persistent_workers=True keeps" in line
    assert unequal(lambda loop: script(loop, stay=False), (3, 9)) == []
    assert said(caplog) == []


def test_workers_that_stay_and_draw_nothing_are_exact(caplog: pytest.LogCaptureFixture) -> None:
    assert unequal(loop_of(plain, lambda: stays(Rows(24))), (3, 9)) == []
    assert said(caplog) == []


# --- threads that read ahead -------------------------------------------------------------------------------------


class Noisy(Rows):
    """Rows with noise from a generator of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.Generator().manual_seed(1)

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + torch.rand(WIDTH, generator=self.own)


class ReadAhead(DataLoader[torch.Tensor]):
    """A loader whose batches a thread puts into a queue, as public packages have it."""

    def __iter__(self) -> Any:
        batches: queue.Queue[Any] = queue.Queue(2)
        inner = super().__iter__()

        def read() -> None:
            for batch in inner:
                batches.put(batch)
            batches.put(None)

        threading.Thread(target=read, daemon=True).start()
        return iter(batches.get, None)


class ReadAheadLater(ReadAhead):
    """The same, with a thread that begins when the first batch is asked for."""

    def __iter__(self) -> Any:
        yield from super().__iter__()


DRAWING: dict[str, Callable[[Any], Any]] = {
    "the dataset": lambda kind: kind(Noisy(), 2),
    "the dataset, from the first batch on": lambda kind: (
        ReadAheadLater(Noisy(), 2) if kind is ReadAhead else kind(Noisy(), 2)
    ),
    "the order": lambda kind: kind(Rows(), 2, shuffle=True),
    "the order, with a generator": lambda kind: kind(
        Rows(), 2, shuffle=True, generator=torch.Generator().manual_seed(2)
    ),
}


@pytest.mark.parametrize("what", DRAWING)
def test_random_numbers_of_a_thread_that_reads_ahead_are_named_once(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    Loop(FakeStore()).live(loop_of(plain, lambda: DRAWING[what](ReadAhead)))
    (line,) = said(caplog)
    assert "train: a thread of this process reads ahead and draws random numbers" in line
    assert unequal(loop_of(plain, lambda: DRAWING[what](DataLoader)), CUTS) == []
    assert said(caplog) == []


@pytest.mark.parametrize(
    "exact",
    [
        lambda: ReadAhead(Rows(), 2),
        lambda: ReadAheadLater(Rows(), 2, shuffle=True),
        lambda: ReadAhead(Rows(), 2, shuffle=True, num_workers=1),
    ],
    ids=["in order", "begun with the first batch", "a worker process reads"],
)
def test_a_thread_that_reads_ahead_and_draws_nothing_is_exact(
    exact: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert unequal(loop_of(plain, exact), CUTS) == []
    assert said(caplog) == []


def test_a_loader_is_the_same_behind_the_start_of_its_workers() -> None:
    raw = stays(Rows(8))
    collate = raw.collate_fn
    assert len(list(spotguard.ResumableLoader(raw))) == 2
    assert (raw.collate_fn, raw.worker_init_fn) == (collate, None)


def test_the_saved_workers_are_the_state_until_the_next_iterator() -> None:
    """`prove` compares the state behind a restore with that of the boundary."""
    loader = spotguard.ResumableLoader(stays(Rows(8)))
    batches = iter(loader)
    next(batches)
    loader.at_boundary()
    state = loader.state_dict()
    fresh = spotguard.ResumableLoader(stays(Rows(8)))
    fresh.load_state_dict(state)
    assert fresh.state_dict()["kept"] is state["kept"] is True
