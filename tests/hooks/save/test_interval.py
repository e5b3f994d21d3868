"""Background checkpoints lie where the least is lost, within what the link, the steps and law 1 allow."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotguard.hooks.save.schedule import (
    LONGEST,
    PRIOR,
    SHORTEST,
    best_interval,
    daly,
    lost_training,
    mean_between,
)

HOUR = 3600.0


@pytest.mark.parametrize(
    ("upload", "cost", "seconds"),
    [
        (1.0, None, 60),  # nothing known: the shortest
        (30.0, None, 300),  # uploads have a tenth of the time
        (5.0, 0.02, 60),  # sqrt(2 C M) is 21 s
        (5.0, 1.0, 147),  # sqrt(2 C M)
        (5.0, 10.0, 1000),  # 1 % of step time
        (5.0, 60.0, 3600),  # an hour
        (900.0, None, 3600),  # a tenth would be 2.5 h
        (1800.0, None, 5400),  # uploads have a third
    ],
)
def test_each_bound_has_its_place(upload: float, cost: float | None, seconds: float) -> None:
    assert best_interval(upload, cost, 3 * HOUR) == pytest.approx(seconds, rel=0.01)


@given(
    upload=st.floats(0, 1e5),
    cost=st.none() | st.floats(0, 1e5),
    mean=st.floats(60, 1e7),
    more=st.floats(1, 100),
)
def test_dearer_and_slower_is_never_more_often(
    upload: float, cost: float | None, mean: float, more: float
) -> None:
    """Nor is a machine that is seldom taken saved more often than one that is taken all the time."""
    found = best_interval(upload, cost, mean)
    assert found >= SHORTEST
    assert found >= 3 * upload * (1 - 1e-9)
    assert found <= max(LONGEST, 3 * upload * (1 + 1e-9))
    assert best_interval(upload * more, cost, mean) >= found
    if cost is not None:
        assert best_interval(upload, cost * more, mean) >= found * (1 - 1e-9)
        assert best_interval(upload, cost, mean * more) >= found * (1 - 1e-9)
        assert found >= min(100 * cost, LONGEST) * (1 - 1e-9)


@given(st.floats(1e-3, 100), st.floats(HOUR, 100 * HOUR))
def test_a_cost_that_is_small_beside_the_mean_is_youngs(cost: float, mean: float) -> None:
    assert daly(cost, mean) == pytest.approx(math.sqrt(2 * cost * mean), rel=0.1)


@pytest.mark.parametrize(("cost", "mean"), [(1.0, 3 * HOUR), (60.0, HOUR), (300.0, HOUR), (1200.0, HOUR)])
def test_no_interval_near_it_loses_less(cost: float, mean: float) -> None:
    """Against Daly's full expression: the time that a piece of work takes, without the restarts."""

    def takes(interval: float) -> float:
        return mean * math.expm1((interval + cost) / mean) / interval

    found = daly(cost, mean)
    least = min(takes(seconds) for seconds in range(10, 20000, 10))
    assert takes(found) <= least * 1.0001


def test_a_cost_beyond_all_measure_is_the_mean() -> None:
    assert daly(2 * HOUR, HOUR) == HOUR
    assert daly(5 * HOUR, HOUR) == HOUR


def test_the_cost_of_a_checkpoint_is_its_copy_and_the_slower_steps() -> None:
    """The copy, and by how much the steps beside the upload are slower. What is not known costs nothing."""
    assert lost_training(0.2, 10.0) == 0.2
    assert lost_training(0.2, 10.0, beside=0.125, alone=0.1) == pytest.approx(2.2)
    assert lost_training(0.2, 10.0, beside=0.09, alone=0.1) == 0.2
    assert lost_training(0.2, 10.0, beside=0.1, alone=0.0) == 0.2


def numbered(starts: list[float]) -> dict[int, float]:
    return dict(enumerate(starts, 1))


def test_before_the_first_preemption_the_prior_stands() -> None:
    """And the time that this attempt lives speaks for more."""
    assert mean_between({}, 5000.0) == PRIOR
    assert mean_between({1: 5000.0}, 5000.0) == PRIOR
    assert mean_between({1: 5000.0}, 5000.0 + 9 * HOUR) == 12 * HOUR
    assert mean_between({1: 5000.0}, 4000.0) == PRIOR  # a clock that was set back


def test_a_run_that_is_often_taken_learns_it_soon() -> None:
    """Three lives of half an hour, and it is believed to be half of the way."""
    starts = [number * HOUR / 2 for number in range(4)]
    assert mean_between(numbered(starts), starts[-1]) == pytest.approx(4.5 * HOUR / 4)


def test_an_end_that_was_committed_loses_nothing() -> None:
    starts = numbered([number * HOUR for number in range(5)])
    assert mean_between(starts, 4 * HOUR) == 7 * HOUR / 5
    assert mean_between(starts, 4 * HOUR, {1, 2, 4}) == 7 * HOUR / 2
    assert mean_between(starts, 4 * HOUR, {1, 2, 3, 4, 5}) == 7 * HOUR


def test_a_start_right_behind_another_is_no_preemption() -> None:
    """A crash, or a restore in place; and a run that lay still for a month did not live for it."""
    assert mean_between(numbered([0.0, 10.0, 20.0]), 20.0) >= PRIOR
    assert mean_between(numbered([0.0, 30 * 24 * HOUR]), 30 * 24 * HOUR) == (24 * HOUR + PRIOR) / 2


def test_old_preemptions_are_forgotten() -> None:
    """A market that took a machine every ten minutes last month says little about today's."""
    before = [number * 600.0 for number in range(100)]
    since = [before[-1] + number * 10 * HOUR for number in range(1, 21)]
    assert mean_between(numbered([*before, *since]), since[-1]) == mean_between(numbered(since), since[-1])
    assert mean_between(numbered(since), since[-1]) > 9 * HOUR


@pytest.mark.parametrize("mean", [HOUR / 2, 2 * HOUR, 10 * HOUR])
def test_many_lives_are_believed_seed_7(mean: float) -> None:
    """Within what twenty of them can tell."""
    lives = random.Random(7)
    starts = list(itertools.accumulate(60 + lives.expovariate(1 / mean) for _ in range(40)))
    assert mean_between(numbered(starts), starts[-1]) == pytest.approx(mean, rel=0.5)
