"""A plan is never one that misses where another fits, and time, rate and bytes move it the one way they should."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from spotguard.hooks.commit.plan.throughput import LinkRate
from spotguard.hooks.save.emergency.budget import (
    BudgetChoice,
    BudgetInputs,
    BudgetPlan,
    EarlierCheckpoint,
    SaveSizes,
    StoredBytes,
    UploadInProgress,
    plan,
    replan,
)

#: What each is worth, the least first.
WORTH = [
    BudgetChoice.KEEP,
    BudgetChoice.LOWER,
    BudgetChoice.FULL_LOSSY,
    BudgetChoice.PROMOTE,
    BudgetChoice.FULL,
]


def worth(chosen: BudgetPlan, at: BudgetInputs) -> int:
    """A background checkpoint of this very step is as good as a full save of it."""
    if chosen.choice is BudgetChoice.PROMOTE and at.background is not None and at.background.step == at.step:
        return WORTH.index(BudgetChoice.FULL)
    return WORTH.index(chosen.choice)


amounts = st.integers(0, 2**42)
seconds = st.floats(0, 1e4)


@st.composite
def rates(draw: st.DrawFn) -> LinkRate:
    expected = draw(st.floats(1.0, 1e12))
    return LinkRate(expected, expected * draw(st.floats(0.1, 1.0)), expected * draw(st.floats(1.0, 4.0)))


@st.composite
def situations(draw: st.DrawFn, known: bool = True) -> BudgetInputs:
    step = draw(st.integers(1, 100))
    moments = draw(amounts)
    rate = draw(rates() if known else st.none() | rates())
    now = draw(st.floats(0, 1e7))
    underway = st.builds(UploadInProgress, st.integers(0, step), seconds, amounts)
    return BudgetInputs(
        now=now,
        deadline=draw(st.just(math.inf) | seconds.map(lambda after: now + after)),
        step=step,
        sizes=SaveSizes(
            parameters=draw(amounts),
            moments=moments,
            rounded=draw(st.none() | st.integers(0, moments)),
            unchanged=draw(st.just(0) | amounts),
        ),
        rate=rate,
        commit=draw(st.floats(0, 10)),
        background=draw(st.none() | underway),
        last=draw(st.none() | st.builds(EarlierCheckpoint, st.integers(-1, step), seconds)),
        commit_at_best=draw(st.just(math.inf) | st.floats(0, 10)),
        lower_counts=draw(st.booleans()),
    )


@given(situations())
def test_no_plan_misses_where_another_fits(at: BudgetInputs) -> None:
    """By its own expected rate; and nothing is kept for want of time where anything fits."""
    assert at.rate is not None
    left, chosen = at.deadline - at.now, plan(at)
    takes = {
        BudgetChoice.FULL: at.sizes.a + at.sizes.b,
        BudgetChoice.LOWER: at.sizes.a,
    }
    if at.sizes.b_rounded is not None:
        takes[BudgetChoice.FULL_LOSSY] = at.sizes.a + at.sizes.b_rounded
    if at.background is not None and (
        at.background.step == at.step or at.last is None or at.background.step > at.last.step
    ):
        takes[BudgetChoice.PROMOTE] = at.background.left
    ends = {choice: nbytes / at.rate.expected + at.commit for choice, nbytes in takes.items()}
    fitting = [choice for choice, end in ends.items() if end < left * (1 - 1e-6) - 1e-6]
    if fitting:
        assert worth(chosen, at) >= max(WORTH.index(choice) for choice in fitting)
        assert ends[chosen.choice] <= left + 1e-6
    if chosen.choice is BudgetChoice.KEEP:
        assert not fitting
    elif ends[chosen.choice] > left + 1e-6:
        assert chosen.slack is not None
        assert chosen.slack < 0


@given(situations(known=False), st.floats(0, 1e4))
def test_more_time_is_never_worse(at: BudgetInputs, more: float) -> None:
    later = replace(at, deadline=at.deadline + more)
    assert worth(plan(later), later) >= worth(plan(at), at)


@given(situations(), st.floats(1, 1e3))
def test_a_faster_link_is_never_worse(at: BudgetInputs, times: float) -> None:
    assert at.rate is not None
    rate = LinkRate(at.rate.expected * times, at.rate.low * times, at.rate.high * times)
    faster = replace(at, rate=rate)
    assert worth(plan(faster), faster) >= worth(plan(at), at)


@given(situations(), st.floats(0, 1), st.floats(0, 1))
def test_fewer_bytes_are_never_worse(at: BudgetInputs, a: float, b: float) -> None:
    plain = replace(at, sizes=SaveSizes(at.sizes.a, at.sizes.b))
    fewer = replace(at, sizes=SaveSizes(int(at.sizes.a * a), int(at.sizes.b * b)))
    assert worth(plan(fewer), fewer) >= worth(plan(plain), plain)


@given(situations(known=False))
def test_nothing_new_changes_nothing(at: BudgetInputs) -> None:
    """Asked a hundred times, a plan stays what it is."""
    chosen = plan(at)
    again = replan(chosen, at, StoredBytes())
    assert again == chosen
    assert replan(again, at, StoredBytes()) == chosen


@given(
    situations(known=False), situations(known=False), st.integers(0, 100), st.integers(0, 100), st.booleans()
)
def test_a_plan_becomes_a_lesser_one(
    at: BudgetInputs, later: BudgetInputs, a: int, b: int, b_begun: bool
) -> None:
    """But for moments that are not begun. One that writes goes on writing, and one that does not never begins."""
    before = plan(at)
    now = replace(later, sizes=at.sizes, step=at.step)
    stored = StoredBytes(at.sizes.a * a // 100, at.sizes.b * b // 100, b_begun=b_begun)
    after = replan(before, now, stored)
    if (before.choice, after.choice) == (BudgetChoice.FULL_LOSSY, BudgetChoice.FULL):  # the one way up
        assert not stored.b
        assert not b_begun
        assert now.rate is not None
        assert (after.slack or 0.0) >= 0
        return
    assert WORTH.index(after.choice) <= WORTH.index(before.choice) or at.sizes.b == 0
    assert (after.choice is BudgetChoice.KEEP) == (before.choice is BudgetChoice.KEEP)
    assert after.lower_first or not before.lower_first
    if after.choice is BudgetChoice.FULL_LOSSY and before.choice is BudgetChoice.FULL:
        assert not stored.b
        assert not b_begun


@given(situations(known=False))
def test_a_reason_names_its_numbers(at: BudgetInputs) -> None:
    """The rate, the seconds that are needed and those that are left; of what stays, its step."""
    chosen = plan(at)
    assert "no deadline" in chosen.reason or re.search(r"[\d.]+ s are left", chosen.reason)
    if chosen.choice is BudgetChoice.KEEP:
        assert "no sound checkpoint" in chosen.reason or f"step {at.last and at.last.step} " in chosen.reason
    elif at.rate is not None:
        assert re.search(r"\d \w+ at [\d.]+ \w+/s need [\d.]+ s", chosen.reason)
