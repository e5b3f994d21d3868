"""A plan is never one that misses where another fits, and time, rate and bytes move it the one way they should."""

from __future__ import annotations

import math
import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from spotguard.hooks.save.plan.budget import (
    Choice,
    Earlier,
    Landed,
    Plan,
    Situation,
    Sizes,
    Underway,
    plan,
    replan,
)
from spotguard.hooks.save.plan.throughput import Rate

#: What each is worth, the least first.
WORTH = [Choice.KEEP, Choice.LOWER, Choice.FULL_LOSSY, Choice.PROMOTE, Choice.FULL]


def worth(chosen: Plan, at: Situation) -> int:
    """A background checkpoint of this very step is as good as a full save of it."""
    if chosen.choice is Choice.PROMOTE and at.background is not None and at.background.step == at.step:
        return WORTH.index(Choice.FULL)
    return WORTH.index(chosen.choice)


amounts = st.integers(0, 2**42)
seconds = st.floats(0, 1e4)


@st.composite
def rates(draw: st.DrawFn) -> Rate:
    expected = draw(st.floats(1.0, 1e12))
    return Rate(expected, expected * draw(st.floats(0.1, 1.0)), expected * draw(st.floats(1.0, 4.0)))


@st.composite
def situations(draw: st.DrawFn, known: bool = True) -> Situation:
    step = draw(st.integers(1, 100))
    moments = draw(amounts)
    rate = draw(rates() if known else st.none() | rates())
    now = draw(st.floats(0, 1e7))
    underway = st.builds(Underway, st.integers(0, step), seconds, amounts)
    return Situation(
        now=now,
        deadline=draw(st.just(math.inf) | seconds.map(lambda after: now + after)),
        step=step,
        sizes=Sizes(
            parameters=draw(amounts),
            moments=moments,
            rounded=draw(st.none() | st.integers(0, moments)),
            unchanged_parameters=draw(st.just(0) | amounts),
            unchanged_moments=draw(st.just(0) | amounts),
        ),
        rate=rate,
        commit=draw(st.floats(0, 10)),
        background=draw(st.none() | underway),
        last=draw(st.none() | st.builds(Earlier, st.integers(-1, step), seconds)),
        commit_at_best=draw(st.just(math.inf) | st.floats(0, 10)),
        lower_counts=draw(st.booleans()),
    )


@given(situations())
def test_no_plan_misses_where_another_fits(at: Situation) -> None:
    """By its own expected rate; and nothing is kept for want of time where anything fits."""
    assert at.rate is not None
    left, chosen = at.deadline - at.now, plan(at)
    takes = {
        Choice.FULL: at.sizes.a + at.sizes.b,
        Choice.LOWER: at.sizes.a,
    }
    if at.sizes.b_rounded is not None:
        takes[Choice.FULL_LOSSY] = at.sizes.a + at.sizes.b_rounded
    if at.background is not None and (
        at.background.step == at.step or at.last is None or at.background.step > at.last.step
    ):
        takes[Choice.PROMOTE] = at.background.left
    ends = {choice: nbytes / at.rate.expected + at.commit for choice, nbytes in takes.items()}
    fitting = [choice for choice, end in ends.items() if end < left * (1 - 1e-6) - 1e-6]
    if fitting:
        assert worth(chosen, at) >= max(WORTH.index(choice) for choice in fitting)
        assert ends[chosen.choice] <= left + 1e-6
    if chosen.choice is Choice.KEEP:
        assert not fitting
    elif ends[chosen.choice] > left + 1e-6:
        assert chosen.slack is not None
        assert chosen.slack < 0


@given(situations(known=False), st.floats(0, 1e4))
def test_more_time_is_never_worse(at: Situation, more: float) -> None:
    later = replace(at, deadline=at.deadline + more)
    assert worth(plan(later), later) >= worth(plan(at), at)


@given(situations(), st.floats(1, 1e3))
def test_a_faster_link_is_never_worse(at: Situation, times: float) -> None:
    assert at.rate is not None
    rate = Rate(at.rate.expected * times, at.rate.low * times, at.rate.high * times)
    faster = replace(at, rate=rate)
    assert worth(plan(faster), faster) >= worth(plan(at), at)


@given(situations(), st.floats(0, 1), st.floats(0, 1))
def test_fewer_bytes_are_never_worse(at: Situation, a: float, b: float) -> None:
    plain = replace(at, sizes=Sizes(at.sizes.a, at.sizes.b))
    fewer = replace(at, sizes=Sizes(int(at.sizes.a * a), int(at.sizes.b * b)))
    assert worth(plan(fewer), fewer) >= worth(plan(plain), plain)


@given(situations(known=False))
def test_nothing_new_changes_nothing(at: Situation) -> None:
    """Asked a hundred times, a plan stays what it is."""
    chosen = plan(at)
    again = replan(chosen, at, Landed())
    assert again == chosen
    assert replan(again, at, Landed()) == chosen


@given(
    situations(known=False), situations(known=False), st.integers(0, 100), st.integers(0, 100), st.booleans()
)
def test_a_plan_becomes_a_lesser_one(at: Situation, later: Situation, a: int, b: int, b_begun: bool) -> None:
    """But for moments that are not begun. One that writes goes on writing, and one that does not never begins."""
    before = plan(at)
    now = replace(later, sizes=at.sizes, step=at.step)
    landed = Landed(at.sizes.a * a // 100, at.sizes.b * b // 100, b_begun=b_begun)
    after = replan(before, now, landed)
    if (before.choice, after.choice) == (Choice.FULL_LOSSY, Choice.FULL):  # the one way up
        assert not landed.b
        assert not b_begun
        assert now.rate is not None
        assert (after.slack or 0.0) >= 0
        return
    assert WORTH.index(after.choice) <= WORTH.index(before.choice) or at.sizes.b == 0
    assert (after.choice is Choice.KEEP) == (before.choice is Choice.KEEP)
    assert after.lower_first or not before.lower_first
    if after.choice is Choice.FULL_LOSSY and before.choice is Choice.FULL:
        assert not landed.b
        assert not b_begun


@given(situations(known=False))
def test_a_reason_names_its_numbers(at: Situation) -> None:
    """The rate, the seconds that are needed and those that are left; of what stays, its step."""
    chosen = plan(at)
    assert "no deadline" in chosen.reason or re.search(r"[\d.]+ s are left", chosen.reason)
    if chosen.choice is Choice.KEEP:
        assert (
            "nothing was committed" in chosen.reason or f"step {at.last and at.last.step} " in chosen.reason
        )
    elif at.rate is not None:
        assert re.search(r"\d \w+ at [\d.]+ \w+/s need [\d.]+ s", chosen.reason)
