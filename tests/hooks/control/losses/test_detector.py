"""Which losses make checkpoints suspect, which are reported, and which never may."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

import pytest

from spotguard.hooks.control.losses.detector import LASTING, LEAST, QUIET, WINDOW, LossChange, LossDetector


def seen(losses: Iterable[float], detector: LossDetector | None = None, first: int = 1) -> LossDetector:
    """A detector that has seen these losses, one a step."""
    detector = detector or LossDetector()
    for step, loss in enumerate(losses, first):
        detector.see(step, loss)
    return detector


def usual(number: int, level: float = 2.0, spread: float = 0.05, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(level, spread) for _ in range(number)]


def changes(losses: Iterable[float], detector: LossDetector | None = None) -> dict[int, LossChange]:
    """The changes that these losses make, by their step."""
    detector = detector or LossDetector()
    found = {step: detector.see(step, loss) for step, loss in enumerate(losses, 1)}
    return {step: change for step, change in found.items() if change is not None}


def suspects(detector: LossDetector, steps: int) -> list[int]:
    return [step for step in range(steps) if detector.why(step)]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_needs_no_history(loss: float) -> None:
    """It was computed from the weights of the step before, which may have been the cause."""
    detector = LossDetector()
    assert detector.see(1, 2.0) is None
    assert detector.see(2, loss) is LossChange.SUSPECT
    assert detector.why(1) == detector.why(2) == f"the loss is {loss} since step 2"
    assert detector.why(0) == ""
    assert detector.see(3, loss) is None


def test_a_suspicion_ends_after_finite_losses_in_a_row() -> None:
    """One bad loss among them begins the count anew, and what was suspect stays so: its checkpoint may be on its way."""
    losses = [2.0] * 10 + [math.nan] + [9.0] * (QUIET - 1) + [math.nan] + [9.0] * QUIET
    detector = LossDetector()
    assert changes(losses, detector) == {11: LossChange.SUSPECT, len(losses): LossChange.TRUSTED}
    assert detector.active is None
    assert suspects(detector, 90) == [*range(10, len(losses))]
    assert detector.bad_steps == 2


def test_losses_that_are_given_rarely_cover_the_steps_between() -> None:
    """Any step after the last finite loss may have been the first bad one."""
    detector = LossDetector()
    for step in (10, 20):
        detector.see(step, 2.0)
    detector.see(30, math.nan)
    assert suspects(detector, 50) == [*range(21, 50)]
    assert detector.why(29) == "the loss is nan since step 30"
    detector = LossDetector()
    detector.begin(100)
    detector.see(110, math.inf)
    assert suspects(detector, 120) == [*range(101, 120)]


def test_several_losses_of_a_step_count_once() -> None:
    """A step with one bad loss among them is bad."""
    detector = LossDetector()
    for step in (1, 2):
        for loss in (math.nan, 2.0, math.nan, 2.0):
            detector.see(step, loss)
    assert detector.bad_steps == 2
    for step in range(3, 3 + QUIET - 1):
        for _ in range(4):
            detector.see(step, 2.0)
    assert detector.active is not None
    detector.see(2 + QUIET, 2.0)
    assert detector.active is None


def test_a_step_is_bad_although_the_first_of_its_losses_was_good() -> None:
    detector = LossDetector()
    for step in range(1, 21):
        for loss in (2.0, math.nan):
            detector.see(step, loss)
    assert detector.bad_steps == 20
    detector = seen([*usual(300), *[9.0] * LASTING])
    detector.see(300 + LASTING, 9.0)
    assert detector.bad_steps == LASTING
    for step in range(400, 420):
        for loss in (2.0, 9.0):
            detector.see(step, loss)
    assert detector.bad_steps == LASTING + 20


def test_spikes_are_reported_if_they_last_and_never_make_suspect() -> None:
    """The report has the first of them, and ends after usual losses in a row."""
    start = usual(300)
    for number in (1, LASTING - 1):
        assert changes([*start, *[9.0] * number, *usual(100), *[9.0] * number, *usual(10)]) == {}
    detector = LossDetector()
    losses = [*start, 9.0, *[12.0] * (LASTING - 1), *usual(QUIET - 1), 12.0, *usual(QUIET)]
    assert changes(losses[: 300 + LASTING], detector) == {300 + LASTING: LossChange.HIGH}
    assert detector.high is not None
    assert detector.high.why.startswith("the loss is 9 since step 301, and was ")
    assert changes(losses) == {300 + LASTING: LossChange.HIGH, len(losses): LossChange.USUAL}
    whole = seen(losses)
    assert suspects(whole, 400) == []
    assert whole.bad_steps == LASTING + 1
    assert whole.high is None


@pytest.mark.parametrize("level", [2.4 * 2, 9.0, 1e30])
def test_a_new_level_becomes_the_usual_one(level: float) -> None:
    """A healthy training may rise for ever: a new term of the loss, other data. It is reported once."""
    draw = usual(20 * WINDOW, level, level / 50)
    high, learned = 300 + LASTING, 300 + LASTING + LEAST
    assert changes([*usual(300), *draw]) == {high: LossChange.HIGH, learned: LossChange.LEARNED}
    detector = seen([*usual(300), *draw])
    assert detector.bad_steps == LASTING + LEAST
    again = changes([*usual(300), *draw, *[level * 9] * LASTING])
    assert again[300 + len(draw) + LASTING] is LossChange.HIGH


def test_a_suspicion_ends_a_report_and_forgets_its_spikes() -> None:
    losses = [*usual(300), *[9.0] * LASTING, math.nan, *[9.0] * QUIET, *[9.0] * LASTING]
    assert [*changes(losses).values()] == [
        LossChange.HIGH,
        LossChange.SUSPECT,
        LossChange.TRUSTED,
        LossChange.HIGH,
    ]
    assert [*changes(losses)][-1] == len(losses)


def test_few_losses_are_not_judged() -> None:
    """A warm-up may do anything, but be finite."""
    losses = [*usual(LEAST - LASTING), *[90.0] * LASTING]
    assert changes([*losses, *usual(100)]) == {}


@pytest.mark.parametrize("level", [0.0, -3.0, 1e-9, 1e30])
def test_the_level_of_losses_does_not_matter(level: float) -> None:
    """They may be negative, or equal for long."""
    for spread in (0.0, abs(level) / 50):
        losses = usual(2000, level, spread)
        assert changes(losses) == {}
        high = max(losses) + 10 * max(spread, abs(level), 1e-3)
        assert seen([*losses, *[high] * LASTING]).high is not None


def test_lower_losses_are_never_spikes() -> None:
    assert changes([*usual(300), *usual(300, level=-9.0), *usual(300, level=-9.0)]) == {}


TAILS: dict[str, Callable[[random.Random], float]] = {
    "student, 2 degrees": lambda draw: draw.gauss(0, 1) / math.sqrt(draw.gammavariate(1, 1)),
    "pareto": lambda draw: draw.paretovariate(1.5) - 3,
    "lognormal": lambda draw: draw.lognormvariate(0, 1),
    "one batch in twenty is ten times harder": lambda draw: (
        10.0 if draw.random() < 0.05 else draw.gauss(0, 1)
    ),
}


@pytest.mark.parametrize("noise", TAILS)
@pytest.mark.parametrize("share", [0.01, 0.2])
def test_clean_training_is_never_reported(noise: str, share: float) -> None:
    """Heavy tails, a fast beginning, decays of the learning rate, epochs that are up to 30 % harder or easier. The benchmark
    `losses` plays millions of such steps.
    """
    draw = random.Random(noise)
    losses = []
    harder = 1.0
    for step in range(10_000):
        if step % 700 == 0:
            harder = draw.uniform(0.7, 1.3)
        level = (2 + 8 * math.exp(-step / 300)) * (0.6 if step > 6000 else 1) * harder
        losses.append(level * (1 + share * TAILS[noise](draw)))
    assert changes(losses) == {}


def test_another_state_begins_anew() -> None:
    """Its losses may be of another run. The count of suspect steps goes on: it feeds a counter."""
    detector = seen([*usual(300), math.nan])
    detector.begin(100)
    assert suspects(detector, 400) == []
    assert detector.bad_steps == 1
    assert changes([9.0] * 40, detector) == {}


def test_a_suspect_state_makes_the_next_steps_suspect() -> None:
    """With or without losses: a rank that gives none would be suspect without end."""
    why = "the loss is nan since step 90"
    for losses in (0, 1, QUIET):
        detector = LossDetector()
        detector.begin(100, why)
        for step in range(101, 101 + losses):
            detector.see(step, 2.0)
        assert suspects(detector, 400) == [*range(100, 100 + QUIET)]
        assert detector.why(100) == why


@pytest.mark.parametrize("every", [1, 7, 40])
def test_a_suspicion_goes_on_after_a_restart_with_its_first_step(every: int) -> None:
    """A divergence is trusted at no time, however often training restarts."""
    why, at = "the loss is nan since step 90", 100
    for _ in range(3):
        detector = LossDetector()
        detector.begin(at, why)
        for step in range(at + every, at + 200, every):
            detector.see(step, math.nan)
            assert {detector.why(each) for each in range(step - every, step + 1)} == {why}
        at += 200
