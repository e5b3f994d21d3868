"""Flags, phases and functions that a loop sets for later turns: named where training depends on them, and not for a set-up."""

from __future__ import annotations

import copy
import enum
from typing import Any, cast

import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional

from spotguard.hooks.guard import Guard
from tests.hooks.state.misuse.scripts import Script, Training, lines

pytestmark = pytest.mark.torch


def doubles_the_first_loss(training: Training, guard: Guard) -> None:
    first = True
    for _ in guard.steps(3):
        loss = training.output().square().mean()
        if first:
            loss = loss * 2
        first = False
        training.learn(loss)


def warms_up_until_a_loss_is_low(training: Training, guard: Guard) -> None:
    warm = True
    for _ in guard.steps(3):
        loss = training.output().square().mean() * (0.1 if warm else 1.0)
        if training.learn(loss) < 0.01:
            warm = False


def steps_twice_every_other_turn(training: Training, guard: Guard) -> None:
    flip = False
    for _ in guard.steps(3):
        training.optimizer.zero_grad()
        training.output().square().mean().backward()
        if flip:
            training.optimizer.step()
            training.optimizer.step()
        else:
            training.optimizer.step()
        flip = not flip


def is_careful_behind_a_high_loss(training: Training, guard: Guard) -> None:
    careful = False
    for _ in guard.steps(3):
        loss = training.output().square().mean()
        if careful:
            loss = loss * 0.5
        shown = training.learn(loss)
        if shown > 2:
            careful = True
        elif shown < 1:
            careful = False


class Phases:
    """Weighs the first loss otherwise."""

    def __init__(self) -> None:
        self.begun = False

    def weigh(self, loss: torch.Tensor) -> torch.Tensor:
        scale = 1.0 if self.begun else 0.1
        self.begun = True
        return loss * scale


def asks_an_attribute(training: Training, guard: Guard) -> None:
    phases = Phases()
    for _ in guard.steps(3):
        training.learn(phases.weigh(training.output().square().mean()))


def asks_an_entry(training: Training, guard: Guard) -> None:
    status = {"early": True}
    for _ in guard.steps(3):
        loss = training.output().square().mean() * (2 if status["early"] else 1)
        status["early"] = False
        training.learn(loss)


def is_in_a_phase(training: Training, guard: Guard) -> None:
    mode = "warm"
    for _ in guard.steps(3):
        loss = training.output().square().mean()
        if mode == "warm":
            loss = loss * 0.1
        if training.learn(loss) < 0.05:
            mode = "main"


class Stage(enum.Enum):
    EARLY = 1
    LATE = 2


def is_at_a_stage(training: Training, guard: Guard) -> None:
    stage = Stage.EARLY
    for _ in guard.steps(3):
        loss = training.output().square().mean()
        if stage is Stage.EARLY:
            loss = loss * 0.5
        training.learn(loss)
        stage = Stage.LATE


def changes_the_loss(training: Training, guard: Guard) -> None:
    criterion = functional.mse_loss
    for _ in guard.steps(3):
        if training.learn(criterion(training.output(), torch.zeros(3, 2))) < 1:
            criterion = functional.l1_loss


def changes_a_weight_at_a_step(training: Training, guard: Guard) -> None:
    share = 1.0
    for step in guard.steps(3):
        if step == 1:
            share = 0.5
        elif step == 2:
            share = 0.25
        training.learn(training.output().square().mean() * share)


def compares_with_the_first_output(training: Training, guard: Guard) -> None:
    reference = torch.ones(3, 2)
    for step in guard.steps(3):
        output = training.output()
        if step == 0:
            reference = output.detach()
        training.learn((output - reference).square().mean())


def lowers_the_rate_once(training: Training, guard: Guard) -> None:
    lowered = False
    for _ in guard.steps(3):
        loss = training.learn(training.output().square().mean())
        if not lowered and loss < 100:
            for group in training.optimizer.param_groups:
                group["lr"] *= 0.1
            lowered = True


def begins_an_average_once(training: Training, guard: Guard) -> None:
    average, begun = training.kept["scores"], False
    for _ in guard.steps(3):
        output = training.output()
        training.learn(output.square().mean())
        if not begun:
            average.copy_(output.detach())
            begun = True
        else:
            average.lerp_(output.detach(), 0.1)


def seeds_once(training: Training, guard: Guard) -> None:
    seeded = False
    for _ in guard.steps(3):
        if not seeded:
            torch.manual_seed(7)
            seeded = True
        training.learn(training.output().square().mean())


def keeps_the_first_weights(training: Training, guard: Guard) -> None:
    anchored, anchor = False, training.model
    for _ in guard.steps(3):
        if not anchored:
            anchor = copy.deepcopy(training.model)
            anchored = True
        training.learn((training.output() - anchor(torch.randn(3, 4))).square().mean())


def divides_by_the_first_loss(training: Training, guard: Guard) -> None:
    unit = None
    for _ in guard.steps(3):
        loss = training.output().square().mean()
        if unit is None:
            unit = float(loss.detach())
        training.learn(loss / unit)


def draws_a_mask_once(training: Training, guard: Guard) -> None:
    drawn, thin = False, torch.ones(2)
    for _ in guard.steps(3):
        if not drawn:
            thin = torch.rand(2)
            drawn = True
        training.learn((training.output() * thin).square().mean())


def clips_from_the_second_turn_on(training: Training, guard: Guard) -> None:
    clips = False
    for _ in guard.steps(3):
        training.optimizer.zero_grad()
        training.output().square().mean().backward()
        if clips:
            torch.nn.utils.clip_grad_norm_(training.model.parameters(), 0.1)
        training.optimizer.step()
        clips = True


@pytest.mark.parametrize(
    ("script", "word"),
    [
        (lowers_the_rate_once, "lowered"),
        (begins_an_average_once, "begun"),
        (seeds_once, "seeded"),
        (keeps_the_first_weights, "anchored"),
        (divides_by_the_first_loss, "unit"),
        (draws_a_mask_once, "drawn"),
        (clips_from_the_second_turn_on, "clips"),
        (is_in_a_phase, "mode"),
        (is_at_a_stage, "stage"),
        (changes_the_loss, "criterion"),
        (changes_a_weight_at_a_step, "share"),
        (compares_with_the_first_output, "reference"),
        (doubles_the_first_loss, "first"),
        (warms_up_until_a_loss_is_low, "warm"),
        (steps_twice_every_other_turn, "flip"),
        (is_careful_behind_a_high_loss, "careful"),
        (asks_an_attribute, "phases.begun"),
        (asks_an_entry, "status['early']"),
    ],
)
def test_value_that_decides_how_later_turns_train_is_named(
    script: Script, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    (line,) = lines(script, caplog)
    assert line.startswith(f"{word} (test_flags.py:")
    assert "begins anew in a resumed run, and training depends on it; " in line


def makes_a_mask_once(training: Training, guard: Guard) -> None:
    made, mask = False, torch.zeros(2)
    for _ in guard.steps(3):
        if not made:
            mask = torch.ones(2)
            made = True
        training.learn((training.output() * mask).square().mean())


def fills_a_cache_once(training: Training, guard: Guard) -> None:
    filled, cache = False, dict[str, torch.Tensor]()
    for _ in guard.steps(3):
        if not filled:
            cache["rows"] = torch.ones(3, 4)
            filled = True
        training.learn(training.model(cache["rows"]).square().mean())


def thaws_once(training: Training, guard: Guard) -> None:
    frozen = True
    for _ in guard.steps(3):
        if frozen:
            for each in training.model.parameters():
                each.requires_grad_(True)
            frozen = False
        training.learn(training.output().square().mean())


def warns_once(training: Training, guard: Guard) -> None:
    warned = False
    for _ in guard.steps(3):
        loss = training.learn(training.output().square().mean())
        if not warned and loss > 0:
            print("high")
            warned = True


def evaluates_in_between(training: Training, guard: Guard) -> None:
    trains = True
    for _ in guard.steps(3):
        loss = training.output().square().mean()
        if trains:
            training.learn(loss)
        trains = False
        print(float(training.output().detach().sum()))
        trains = True


def follows_the_step(training: Training, guard: Guard) -> None:
    late = False
    for step in guard.steps(3):
        late = step > 1
        training.learn(training.output().square().mean() * (2 if late else 1))


def stops_when_it_is_done(training: Training, guard: Guard) -> None:
    done = False
    for step in guard.steps(3):
        if done:
            break
        training.learn(training.output().square().mean())
        done = step >= 10


def never_changes_it(training: Training, guard: Guard) -> None:
    smooth = True
    for _ in guard.steps(3):
        loss = training.output().square().mean()
        if smooth:
            loss = loss * 0.5
        training.learn(loss)


def evaluates_another_split(training: Training, guard: Guard) -> None:
    split = "train"
    for _ in guard.steps(3):
        split = "train"
        if split == "train":
            training.learn(training.output().square().mean())
        split = "test"


def prints_where_the_kind_changes(training: Training, guard: Guard) -> None:
    shown = ""
    for step in guard.steps(3):
        kind = "even" if step % 2 == 0 else "odd"
        if kind != shown:
            print(kind)
        shown = kind
        training.learn(training.output().square().mean() * (2 if kind == "even" else 1))


def compiles_once(training: Training, guard: Guard) -> None:
    run: Any = training.model.forward
    for step in guard.steps(3):
        if step == 0:
            run = torch.no_grad()(run) if step else run
        training.learn(run(torch.randn(3, 4)).square().mean())


def sets_a_weight_at_each_step(training: Training, guard: Guard) -> None:
    part = 1.0
    for step in guard.steps(3):
        if step == 1:
            part = 0.5
        else:
            part = 1.0
        training.learn(training.output().square().mean() * part)


def adds_a_loss_at_a_step(training: Training, guard: Guard) -> None:
    extra = torch.zeros(())
    for step in guard.steps(3):
        loss = training.output().square().mean()
        if step == 1:
            extra = training.output().abs().mean()
            loss = loss + extra
        training.learn(loss)
        print(float(extra.detach()))


class Masking:
    """Makes its mask at the first call."""

    def __init__(self) -> None:
        self.built, self.mask = False, torch.zeros(2)

    def __call__(self, output: torch.Tensor) -> torch.Tensor:
        if not self.built:
            self.mask = torch.ones(2)
            self.built = True
        return output * self.mask


def calls_an_object_that_makes_it_once(training: Training, guard: Guard) -> None:
    masking = Masking()
    for _ in guard.steps(3):
        training.learn(masking(training.output()).square().mean())


def makes_it_once_in_a_closure(training: Training, guard: Guard) -> None:
    got, grid = False, torch.zeros(2)

    def smooth(output: torch.Tensor) -> torch.Tensor:
        nonlocal got, grid
        if not got:
            grid = torch.ones(2)
            got = True
        return output * grid

    for _ in guard.steps(3):
        training.learn(smooth(training.output()).square().mean())


def sizes_it_by_the_first_batch(training: Training, guard: Guard) -> None:
    sized, ones = False, torch.zeros(2)
    for _ in guard.steps(3):
        output = training.output()
        if not sized:
            ones = torch.ones(output.shape[1])
            sized = True
        training.learn((output * ones).square().mean())


def makes_it_anew_where_there_is_one(training: Training, guard: Guard) -> None:
    scales = torch.ones(2)
    for _ in guard.steps(3):
        output = training.output()
        if scales is not None:
            scales = output.detach().abs().mean(0)
        training.learn((output * scales).square().mean())


@pytest.mark.parametrize(
    "script",
    [
        makes_it_anew_where_there_is_one,
        calls_an_object_that_makes_it_once,
        makes_it_once_in_a_closure,
        sizes_it_by_the_first_batch,
        evaluates_another_split,
        prints_where_the_kind_changes,
        compiles_once,
        sets_a_weight_at_each_step,
        adds_a_loss_at_a_step,
        makes_a_mask_once,
        fills_a_cache_once,
        thaws_once,
        warns_once,
        evaluates_in_between,
        follows_the_step,
        stops_when_it_is_done,
        never_changes_it,
    ],
)
def test_value_that_only_sets_up_or_shows_is_not_named(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    assert lines(script, caplog) == []


def takes_no_more_than_there_is(training: Training, guard: Guard) -> None:
    size, rows = 8, torch.randn(3, 4)
    for _ in guard.steps(3):
        size = min(size, len(rows))
        training.learn(training.model(rows[:size]).square().mean())


def bounds_it_twice(training: Training, guard: Guard) -> None:
    pace, tempo = 0.5, cast(float, "0.5")
    for _ in guard.steps(3):
        pace = max(1e-4, min(pace, 0.05))
        tempo = float(tempo)
        tempo = min(tempo, 0.05)
        training.rate(pace + tempo)
        training.learn(training.output().square().mean())


def takes_a_default(training: Training, guard: Guard) -> None:
    scale, power = None, None
    for _ in guard.steps(3):
        scale = scale or 2.0
        power = 2 if power is None else power
        training.learn(training.output().pow(power).mean() * scale)


def bounds_a_tensor(training: Training, guard: Guard) -> None:
    bound = torch.tensor(9.0)
    for _ in guard.steps(3):
        bound = bound.clamp(0, 5)
        training.learn(training.output().square().mean() * bound)


@pytest.mark.parametrize(
    "script", [takes_no_more_than_there_is, bounds_it_twice, takes_a_default, bounds_a_tensor]
)
def test_value_that_each_turn_bounds_alike_is_not_named(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    assert lines(script, caplog) == []


def uses_it_before_it_is_bounded(training: Training, guard: Guard) -> None:
    most = 8
    for _ in guard.steps(3):
        training.learn(training.output().square().mean() * most)
        most = min(most, 3)


def keeps_the_first_loss(training: Training, guard: Guard) -> None:
    base = None
    for _ in guard.steps(3):
        loss = training.output().square().mean()
        base = base or float(loss.detach())
        training.learn(loss / base)


def bounds_by_what_moves(training: Training, guard: Guard) -> None:
    lowest = 9.0
    for _ in guard.steps(3):
        loss = training.output().square().mean()
        lowest = min(lowest, float(loss.detach()))
        training.learn(loss * lowest)


def bounds_what_grows(training: Training, guard: Guard) -> None:
    growing = 1
    for _ in guard.steps(3):
        growing += 1
        growing = min(growing, 9)
        training.learn(training.output().square().mean() * growing)


@pytest.mark.parametrize(
    ("script", "word"),
    [
        (uses_it_before_it_is_bounded, "most"),
        (keeps_the_first_loss, "base"),
        (bounds_by_what_moves, "lowest"),
        (bounds_what_grows, "growing"),
    ],
)
def test_value_that_is_bounded_and_differs_from_turn_to_turn_is_named(
    script: Script, word: str, caplog: pytest.LogCaptureFixture
) -> None:
    (line,) = lines(script, caplog)
    assert line.startswith(f"{word} (test_flags.py:")
