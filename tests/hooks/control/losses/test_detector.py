"""Which losses make checkpoints suspect, and which never may."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable

import pytest

from spotguard.hooks.control.losses.detector import LASTING, LEAST, QUIET, WINDOW, LossDetector


def seen(losses: Iterable[float], detector: LossDetector | None = None, first: int = 1) -> LossDetector:
    """A detector that has seen these losses, one a step."""
    detector = detector or LossDetector()
    for step, loss in enumerate(losses, first):
        detector.see(step, loss)
    return detector


def usual(number: int, level: float = 2.0, spread: float = 0.05, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(level, spread) for _ in range(number)]


def suspects(detector: LossDetector, steps: int) -> list[int]:
    return [step for step in range(steps) if detector.why(step)]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_needs_no_history(loss: float) -> None:
    """It was computed from the weights of the step before, which may have been the cause."""
    detector = LossDetector()
    assert not detector.see(1, 2.0)
    assert detector.see(2, loss)
    assert detector.why(1) == detector.why(2) == f"the loss is {loss} since step 2"
    assert detector.why(0) == ""
    assert not detector.see(3, loss)


def test_a_suspicion_ends_after_normal_losses_in_a_row() -> None:
    """One bad loss among them begins the count anew, and what was suspect stays so: its checkpoint may be on its way."""
    losses = [2.0] * 10 + [math.nan] + [2.0] * (QUIET - 1) + [math.nan] + [2.0] * QUIET
    detector = seen(losses)
    assert detector.active is None
    assert suspects(detector, 90) == [*range(10, len(losses))]
    assert detector.suspect_steps == len(losses) - 10


def test_spikes_make_suspect_only_if_they_last() -> None:
    start = usual(300)
    for number in (1, LASTING - 1):
        assert suspects(seen([*start, *[9.0] * number, *usual(100)]), 500) == []
    detector = seen([*start, *[9.0] * LASTING])
    assert detector.why(300).startswith("the loss is 9 since step 301, and was ")
    assert suspects(detector, 400)[0] == 300
    assert detector.suspect_steps == LASTING


def test_a_training_that_stays_diverged_stays_suspect() -> None:
    """However long: its losses do not become the usual ones."""
    detector = seen([*usual(300), *usual(20 * WINDOW, level=9.0)])
    assert detector.active is not None
    assert detector.why(300 + 20 * WINDOW)
    assert seen(usual(QUIET), detector, 5000).active is None


def test_few_losses_are_not_judged() -> None:
    """A warm-up may do anything, but be finite."""
    losses = [*usual(LEAST - LASTING), *[90.0] * LASTING]
    assert suspects(seen(losses), 100) == []
    assert suspects(seen([*losses, *usual(100)]), 200) == []


@pytest.mark.parametrize("level", [0.0, -3.0, 1e-9, 1e30])
def test_the_level_of_losses_does_not_matter(level: float) -> None:
    """They may be negative, or equal for long."""
    for spread in (0.0, abs(level) / 50):
        losses = usual(2000, level, spread)
        assert suspects(seen(losses), 2000) == []
        high = max(losses) + 10 * max(spread, abs(level), 1e-3)
        assert seen([*losses, *[high] * LASTING]).active is not None


def test_lower_losses_are_never_spikes() -> None:
    assert suspects(seen([*usual(300), *usual(300, level=-9.0), *usual(300, level=-9.0)]), 900) == []


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
def test_clean_training_is_never_suspect(noise: str, share: float) -> None:
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
    assert suspects(seen(losses), 10_000) == []


def test_another_state_begins_anew() -> None:
    """Its losses may be of another run. The count of suspect steps goes on: it feeds a counter."""
    detector = seen([*usual(300), math.nan])
    detector.begin(100)
    assert suspects(detector, 400) == []
    assert detector.suspect_steps == 1
    assert suspects(seen([9.0] * 40, detector, 101), 400) == []


def test_a_suspect_state_makes_the_next_steps_suspect() -> None:
    """With or without losses: a rank that gives none would be suspect without end."""
    detector = LossDetector()
    detector.begin(100, "the loss is nan since step 90 on rank 1")
    assert suspects(detector, 400) == [*range(100, 100 + QUIET)]
    assert detector.active is None
