"""Loops over `guard.steps()`: one, several in one process, and those that are left or marked by hand."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from spotguard.hooks.guard import Guard  # noqa: E402
from spotguard.hooks.ipc.failures.phase_times import ENOUGH  # noqa: E402
from spotguard.providers.errors import UsageError  # noqa: E402
from spotguard.providers.stores.file import FileStore  # noqa: E402
from tests.fakes.clock import ManualClock  # noqa: E402
from tests.fakes.store import FakeStore  # noqa: E402
from tests.fakes.training import (  # noqa: E402
    Job,
    different,
    guarded,
    restored,
    small,
    step_on,
    trajectory,
)

pytestmark = pytest.mark.torch

TOTAL = 5
MIDDLE = r"in the middle of the turn behind step {}, because {}: call guard\.step\(\) before break"


def test_steps_is_the_loop_in_one_line(folder: Path) -> None:
    """It restores, counts, and makes the boundaries."""
    job = small()
    with guarded(folder, job.values) as guard:
        for number in guard.steps(3):
            job.step(number)
        assert guard.save().step == 3
    job = small()
    with guarded(folder, job.values) as guard:
        counted = []
        for number in guard.steps(TOTAL):
            counted.append(number)
            job.step(number)
        assert counted == [3, 4]
    assert different(job.bits(), trajectory(small, TOTAL)[-1]) == []


@pytest.mark.parametrize("total", [ENOUGH + 2, None])
def test_behind_the_last_of_its_steps_training_is_over(folder: Path, total: int | None) -> None:
    """An upload that follows may take minutes: the times of the steps say nothing of it. A loop may also be left early."""
    job, clock = small(), ManualClock()
    with guarded(FileStore(folder), job.values, clock=clock) as guard:
        limits = []
        for number in guard.steps(total):
            job.step(number)
            clock.advance(2.0)
            limits.append(guard._position().limit)
            if total is None and number > ENOUGH:
                break
        clock.advance(2.0)
        assert (limits[-1] > 0, guard._position().limit) == (True, -1.0)


# --- several loops in one process ---


def in_epochs(guard: Guard, job: Job) -> None:
    for total in (2, 4, TOTAL):
        for number in guard.steps(total):
            job.step(number)


def behind_restore(guard: Guard, job: Job) -> None:
    done = guard.restore()
    step_on(guard, job, *range(done, 2))
    for number in guard.steps(TOTAL):
        job.step(number)


def left_before_the_work(guard: Guard, job: Job) -> None:
    for number in guard.steps(TOTAL):
        if number == 2:
            break
        job.step(number)
    for number in guard.steps(TOTAL):
        job.step(number)


def left_behind_a_boundary_by_hand(guard: Guard, job: Job) -> None:
    for number in guard.steps():
        job.step(number)
        if number == 2:
            guard.step()
            break
    for number in guard.steps(TOTAL):
        job.step(number)


def left_by_return(guard: Guard, job: Job) -> None:
    def some() -> None:
        for number in guard.steps():
            job.step(number)
            if number == 2:
                guard.step()
                return

    some()
    step_on(guard, job, 3)  # a loop by hand may follow
    for number in guard.steps(TOTAL):
        job.step(number)


def zipped(guard: Guard, job: Job) -> None:
    for total in (3, TOTAL):
        for number, _ in zip(guard.steps(total), itertools.count(), strict=False):
            job.step(number)


def with_saves(guard: Guard, job: Job) -> None:
    for total in (3, TOTAL):
        for number in guard.steps(total):
            guard.save()
            job.step(number)


class Bar:
    """A bar as those of tqdm: it holds what it goes through, and iterates by a generator."""

    def __init__(self, steps: Iterator[int]) -> None:
        self.steps = steps

    def __iter__(self) -> Iterator[int]:
        yield from self.steps


def held_and_left_behind_a_boundary(guard: Guard, job: Job) -> None:
    bar, steps = Bar(guard.steps()), guard.steps()
    for number in bar:
        job.step(number)
        if number == 1:
            guard.step()
            break
    for number in steps:
        job.step(number)
        if number == 2:
            guard.step()
            break
    for number in (3, 4):
        job.step(number)
        guard.step()


def held_and_left_before_the_work(guard: Guard, job: Job) -> None:
    steps = guard.steps()
    for number in steps:
        if number == 2:
            break
        job.step(number)
    for number in range(2, TOTAL):
        job.step(number)
        guard.step()


def held_across_a_restore(guard: Guard, job: Job) -> None:
    steps = iter(guard.steps())
    for number in steps:
        if number == 2:
            guard.save()
        job.step(number)
        if number == 3:
            guard.step()
            break
    assert guard.restore() == 2
    step_on(guard, job, 2, 3, 4)
    assert next(guard.steps()) == TOTAL


LOOPS = (
    held_and_left_behind_a_boundary,
    held_and_left_before_the_work,
    held_across_a_restore,
    in_epochs,
    behind_restore,
    left_before_the_work,
    left_behind_a_boundary_by_hand,
    left_by_return,
    zipped,
    with_saves,
)


@pytest.mark.parametrize("loops", LOOPS)
def test_a_later_loop_goes_on_where_training_is(
    loops: Callable[[Guard, Job], None], caplog: pytest.LogCaptureFixture
) -> None:
    store, job = FakeStore(), small()
    with guarded(store, job.values) as guard:
        loops(guard, job)
        assert guard.view.completed() == TOTAL
        assert guard.save().step == TOTAL
    assert different(job.bits(), trajectory(small, TOTAL)[-1]) == []
    assert restored(store, small)[0] == TOTAL
    assert "SG405" not in caplog.text


def test_steps_behind_a_restore_restores_no_second_time(folder: Path) -> None:
    """That would claim an attempt more, and bring another step than the one that was asked for."""
    job = small()
    with guarded(folder, job.values) as guard:
        for number in guard.steps(3):
            guard.save()
            job.step(number)
    with guarded(folder, small().values) as guard:
        assert guard.restore(step=1) == 1
        attempts = len(list(folder.glob("run/attempts/*")))
        assert next(guard.steps(TOTAL)) == 1
        assert next(guard.steps(TOTAL)) == 1  # nothing has begun
        assert len(list(folder.glob("run/attempts/*"))) == attempts


def stepped(job: Job) -> None:
    job.step(2)


def gradients(job: Job) -> None:
    job.values["model"].eval()(torch.ones(6, 8)).sum().backward()


def forward(job: Job) -> Any:
    return job.values["model"](torch.ones(6, 8))


BEGUN = {
    "an optimizer has stepped": stepped,
    "the gradient of model.0.bias has changed": gradients,
    "model.1.running_mean has moved": forward,
}


@pytest.mark.parametrize(("why", "work"), BEGUN.items(), ids=BEGUN)
def test_a_loop_left_in_its_turn_is_followed_by_no_other(why: str, work: Callable[[Job], None]) -> None:
    job = small()
    with guarded(FakeStore(), job.values) as guard:
        for number in guard.steps():
            if number == 2:
                work(job)
                break
            job.step(number)
        with pytest.raises(UsageError, match=MIDDLE.format(2, why)):
            next(guard.steps(TOTAL))
        assert guard.view.completed() == 2


@pytest.mark.parametrize(("why", "work"), BEGUN.items(), ids=BEGUN)
def test_a_loop_left_in_its_first_turn_is_followed_by_no_other(
    why: str, work: Callable[[Job], object]
) -> None:
    job = small()
    with guarded(FakeStore(), job.values) as guard:
        for _ in guard.steps():
            work(job)
            break
        with pytest.raises(UsageError, match=MIDDLE.format(0, why)):
            next(guard.steps(TOTAL))


def warm_up(job: Job) -> None:
    for _ in range(3):
        forward(job)


def rate_search(job: Job) -> None:
    model, optimizer = job.values["model"], job.values["optimizer"]
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    for rate in (1e-4, 1e-2, 1.0):
        optimizer.param_groups[0]["lr"] = rate
        forward(job).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])


def pretrained(job: Job) -> None:
    job.values["model"].load_state_dict(
        {key: value + 1 for key, value in job.values["model"].state_dict().items()}
    )
    rate_search(job)


@pytest.mark.parametrize("work", [warm_up, gradients, rate_search, pretrained])
def test_the_first_loop_begins_behind_what_the_script_has_tried_out(
    work: Callable[[Job], None], caplog: pytest.LogCaptureFixture
) -> None:
    whole = small()
    work(whole)
    for number in range(TOTAL):
        whole.step(number)
    bits = whole.bits()
    store, job = FakeStore(), small()
    with guarded(store, job.values) as guard:
        guard.restore()
        work(job)
        for number in guard.steps(TOTAL):
            job.step(number)
        guard.save()
    assert different(job.bits(), bits) == []
    assert restored(store, small)[0] == TOTAL
    assert "SG405" not in caplog.text


def test_the_first_loop_begins_in_no_step_of_an_optimizer() -> None:
    """The resumed run would make that step again."""
    job = small()
    with guarded(FakeStore(), job.values) as guard:
        guard.restore()
        job.step(0)
        with pytest.raises(UsageError, match=MIDDLE.format(0, "an optimizer has stepped")):
            next(guard.steps(TOTAL))


def test_a_restore_goes_back_from_a_turn_that_has_begun() -> None:
    job = small()
    with guarded(FakeStore(), job.values) as guard:
        for number in guard.steps():
            if number == 1:
                guard.save()
            job.step(number)
            if number == 2:
                break
        assert guard.restore() == 1
        for number in guard.steps(TOTAL):
            job.step(number)
    assert different(job.bits(), trajectory(small, TOTAL)[-1]) == []


# --- guard.step() inside a loop over guard.steps() ---


def in_the_body(guard: Guard, job: Job) -> Iterator[int]:
    for number in guard.steps(TOTAL):
        yield number
        job.step(number)
        guard.step()


def in_a_callback(guard: Guard, job: Job) -> Iterator[int]:
    def behind() -> None:
        guard.step()

    for _, number in enumerate(guard.steps(TOTAL)):
        yield number
        job.step(number)
        behind()


def beside_a_loader(guard: Guard, job: Job) -> Iterator[int]:
    for number, _ in zip(guard.steps(), itertools.count(), strict=False):
        yield number
        job.step(number)
        guard.step(loss=1.0)


def for_each_batch(guard: Guard, job: Job) -> Iterator[int]:
    for number in guard.steps(2):
        yield number
        for _ in range(3):
            job.step(number)
            guard.step()


def by_a_function_of_c(guard: Guard, job: Job) -> Iterator[int]:
    def train(number: int) -> int:
        job.step(number)
        guard.step()
        return number

    yield from map(train, guard.steps(TOTAL))


def at_the_top(guard: Guard, job: Job) -> Iterator[int]:
    for number in guard.steps(TOTAL):
        yield number
        guard.step()
        job.step(number)


@pytest.mark.parametrize(
    "loop", [in_the_body, in_a_callback, beside_a_loader, for_each_batch, by_a_function_of_c, at_the_top]
)
def test_a_turn_that_is_marked_by_hand_does_not_count_twice(
    loop: Callable[[Guard, Job], Iterator[int]],
) -> None:
    store, job = FakeStore(), small()
    seen: list[int] = []
    with guarded(store, job.values) as guard:
        with pytest.raises(
            UsageError, match=r"guard\.step\(\) \(test_steps\.py:\d+\) .* except right before break"
        ):
            seen += loop(guard, job)
        assert guard.view.completed() == 1


@pytest.mark.parametrize("going", ["back", "another loop"])
def test_a_loop_does_not_go_on_at_another_step(going: str) -> None:
    job = small()

    def loop() -> None:
        for number in guard.steps(TOTAL):
            if number == 1:
                guard.save()
            if number == 2 and going == "back":
                guard.restore()
            elif number == 2:
                for inner in guard.steps(4):
                    job.step(inner)
            job.step(number)

    with guarded(FakeStore(), job.values) as guard:
        with pytest.raises(UsageError, match=r"in the turn behind step 2, and training is at step [14]"):
            loop()
        assert guard.view.completed() == (1 if going == "back" else 4)


def test_a_loop_of_a_closed_guard_goes_on() -> None:
    job, seen = small(), []
    with guarded(FakeStore(), job.values) as guard:
        for number in guard.steps(TOTAL):
            seen.append(number)
            job.step(number)
            if number == 2:
                guard.close()
    assert seen == [*range(TOTAL)]


# --- a restore that finds nothing ---


def by_steps(guard: Guard, job: Job) -> None:
    step_on(guard, job, 0, 1)


def by_half_a_step(guard: Guard, job: Job) -> None:
    job.step(0)


def by_gradients(guard: Guard, job: Job) -> None:
    gradients(job)


def by_a_loop(guard: Guard, job: Job) -> None:
    for number in guard.steps(2):
        job.step(number)


@pytest.mark.parametrize("trained", [by_steps, by_half_a_step, by_gradients, by_a_loop])
def test_a_restore_that_finds_nothing_behind_training_is_refused(
    trained: Callable[[Guard, Job], None],
) -> None:
    store, job = FakeStore(), small()
    with guarded(store, job.values) as guard:
        guard.restore()
        trained(guard, job)
        before, step = job.bits(), guard.view.completed()
        with pytest.raises(
            UsageError, match=rf"found no checkpoint of run run, and training is at step {step}"
        ):
            guard.restore()
        assert different(job.bits(), before) == []
        assert guard.view.completed() == step


def test_a_checkpoint_of_the_first_step_is_what_a_restore_goes_back_to() -> None:
    job = small()
    first = job.bits()
    with guarded(FakeStore(), job.values) as guard:
        assert guard.restore() == 0
        assert guard.restore() == 0  # nothing was trained
        guard.save()
        step_on(guard, job, 0, 1)
        assert guard.restore() == 0
        assert different(job.bits(), first) == []


def test_training_goes_on_behind_a_restore_that_was_refused() -> None:
    store, job = FakeStore(), small()
    with guarded(store, job.values) as guard:
        guard.restore()
        step_on(guard, job, 0, 1)
        with pytest.raises(UsageError):
            guard.restore()
        step_on(guard, job, 2)
        assert guard.save().step == 3
    assert different(restored(store, small)[1], trajectory(small, 3)[-1]) == []
