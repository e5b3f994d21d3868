"""Beside a link that is played byte by byte: a plan is what trying each would give, and is never regretted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from spotguard.hooks.commit.plan.throughput import LinkRate
from spotguard.hooks.save.emergency.budget import (
    BudgetChoice,
    BudgetInputs,
    EarlierCheckpoint,
    SaveSizes,
    StoredBytes,
    UploadInProgress,
    plan,
    replan,
)


def small() -> Iterator[BudgetInputs]:
    """Every one with small numbers: some twenty thousand."""
    backgrounds = [
        None,
        UploadInProgress(9, 5.0, 2),
        UploadInProgress(10, 0.0, 2),
        UploadInProgress(7, 60.0, 3),
    ]
    for a, b, rounded, rate, left, commit in itertools.product(
        range(5), range(5), (None, 1, 2), (1, 2, 3), range(9), (0, 1, 2)
    ):
        for background in backgrounds:
            at = BudgetInputs(
                100.0, 100.0 + left, 10, SaveSizes(a, b, rounded), LinkRate.exactly(rate), commit, background
            )
            yield replace(at, last=EarlierCheckpoint(8, 30.0))


def arrives(nbytes: int, at: BudgetInputs) -> bool:
    """Whether so many bytes and a commit get through, sent one by one; time counts in turns of one byte."""
    assert at.rate is not None
    rate = int(at.rate.expected)
    turns = 0
    for _ in range(nbytes):
        turns += 1
    return turns + int(at.commit) * rate <= int(at.deadline - at.now) * rate


def best(at: BudgetInputs) -> BudgetChoice:
    """By trying each, the best first."""
    sizes, found = at.sizes, at.background
    if found is not None and found.step == 10 and found.left < sizes.a + sizes.b and arrives(found.left, at):
        return BudgetChoice.PROMOTE
    if arrives(sizes.a + sizes.b, at):
        return BudgetChoice.FULL
    if found is not None and found.step > 8 and arrives(found.left, at):
        return BudgetChoice.PROMOTE
    if sizes.rounded is not None and sizes.rounded < sizes.b and arrives(sizes.a + sizes.rounded, at):
        return BudgetChoice.FULL_LOSSY
    return BudgetChoice.LOWER if arrives(sizes.a, at) else BudgetChoice.KEEP


def test_every_small_one_is_planned_as_trying_would() -> None:
    seen = set()
    for at in small():
        chosen = plan(at)
        assert chosen.choice is best(at), at
        seen.add(chosen.choice)
    assert seen == set(BudgetChoice)


def played(at: BudgetInputs, turns: list[int], chunk: int) -> tuple[list[BudgetChoice], str]:
    """A writer that obeys, over a link that carries so many bytes in each turn of a second. Manifests go beside.

    Returns:
        Every plan that held, and what was committed in the end: "full", "lower" or "".
    """
    sent, committed = 0, ""
    current, rate = plan(at), at.rate
    held = [current.choice]
    whole = at.sizes.a + at.sizes.b
    for number, carried in enumerate(turns):
        now = at.now + number
        if now + at.commit > at.deadline or current.choice is BudgetChoice.KEEP:
            break
        if sent == whole:
            return held, "full"
        if sent >= at.sizes.a and (current.lower_first or now >= current.fall_back_at):
            committed = "lower"
        sent = min(whole, sent + carried)
        if sent:
            rate = rate or LinkRate.exactly(sum(turns[: number + 1]) / (number + 1))
        stored = sent if sent == whole else sent // chunk * chunk
        a, b = min(stored, at.sizes.a), max(0, stored - at.sizes.a)
        if not committed:
            current = replan(current, replace(at, now=now + 1, rate=rate), StoredBytes(a, b))
        held.append(current.choice)
    return held, committed


@given(
    a=st.integers(1, 30),
    b=st.integers(1, 30),
    rate=st.integers(1, 5),
    left=st.integers(0, 40),
    commit=st.integers(0, 3),
    chunk=st.integers(1, 4),
)
def test_a_plan_with_the_true_rate_is_never_regretted(
    a: int, b: int, rate: int, left: int, commit: int, chunk: int
) -> None:
    """It stays to the end, and what it promised is what is committed."""
    # Whole seconds, as the link that is played has: what is sent in a part of one arrives at its end.
    sizes, stays = SaveSizes(a * rate, b * rate), EarlierCheckpoint(8, 30.0)
    at = BudgetInputs(50.0, 50.0 + left, 10, sizes, LinkRate.exactly(rate), float(commit), last=stays)
    held, committed = played(at, [rate] * (left + 1), 1 if chunk == 1 else rate)
    assert len(set(held)) == 1
    assert (
        committed == {BudgetChoice.FULL: "full", BudgetChoice.LOWER: "lower", BudgetChoice.KEEP: ""}[held[0]]
    )


@given(
    turns=st.lists(st.integers(0, 6), min_size=1, max_size=40),
    a=st.integers(0, 40),
    b=st.integers(0, 40),
    rate=st.none() | st.floats(0.1, 10),
    commit=st.integers(0, 3),
    chunk=st.integers(1, 8),
)
def test_no_link_leaves_nothing_where_a_writer_that_knew_it_had_something(
    turns: list[int], a: int, b: int, rate: float | None, commit: int, chunk: int
) -> None:
    """Whatever was believed of it: what is worth most is in first, and is committed in time."""
    at = BudgetInputs(
        0.0,
        float(len(turns)),
        10,
        SaveSizes(a, b),
        None if rate is None else LinkRate.exactly(rate),
        float(commit),
    )
    if plan(at).choice is BudgetChoice.KEEP:
        return
    _, committed = played(at, [*turns, 0], chunk)
    # Twice a commit's seconds before the end is the last moment that is looked for.
    in_time = int(at.deadline) - 2 * commit
    if in_time > 0 and sum(turns[:in_time]) >= a:
        assert committed
    if commit == 0 and sum(turns) >= a + b:
        assert committed == "full"
