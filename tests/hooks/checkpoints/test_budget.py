"""A plan is never one that misses where another fits, and time, rate and bytes move it the one way they should."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotguard.hooks.checkpoints.budget import plan, replan
from spotguard.hooks.checkpoints.plans import Choice, Earlier, Landed, Plan, Situation, Sizes, Underway
from spotguard.hooks.checkpoints.rate import Rate

MIB = 2**20
#: What each is worth, the least first.
WORTH = [Choice.KEEP, Choice.LOWER, Choice.FULL_LOSSY, Choice.PROMOTE, Choice.FULL]


def worth(chosen: Plan, at: Situation) -> int:
    """A background checkpoint of this very step is as good as a full save of it."""
    if chosen.choice is Choice.PROMOTE and at.background is not None and at.background.step == at.step:
        return WORTH.index(Choice.FULL)
    return WORTH.index(chosen.choice)


def situation(
    seconds: float,
    *,
    rate: float | None = 100 * MIB,
    sizes: Sizes = Sizes(400 * MIB, 800 * MIB),  # noqa: B008 - a value, and frozen
    commit: float = 0.5,
    background: Underway | None = None,
    last: Earlier | None = None,
) -> Situation:
    known = None if rate is None else Rate.exactly(rate)
    return Situation(1000.0, 1000.0 + seconds, 120, sizes, known, commit, background, last)


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
    )


# --- what is said of each ---


@pytest.mark.parametrize(
    ("left", "choice", "said"),
    [
        (20, Choice.FULL, "everything: 1.2 GiB at 100 MiB/s need 12.5 s, and 20.0 s are left"),
        (10, Choice.LOWER, "they: 400 MiB at 100 MiB/s need 4.5 s, and 10.0 s are left"),
        (
            3,
            Choice.KEEP,
            "alone do not fit: 400 MiB at 100 MiB/s need 4.5 s, and 3.0 s are left; step 90 stays",
        ),
        (
            0.1,
            Choice.KEEP,
            "a commit takes 0.5 s, and 0.1 s are left; step 90 stays, 34 s of training before",
        ),
        (math.inf, Choice.FULL, "there is no deadline"),
    ],
)
def test_each_says_its_numbers(left: float, choice: Choice, said: str) -> None:
    chosen = plan(situation(left, last=Earlier(90, 34.0)))
    assert chosen.choice is choice
    assert said in chosen.reason


def test_slow_commits_do_not_keep_a_save_from_being_tried() -> None:
    """Where the quickest of the last few would still be in time: nothing is said to fit, and trying loses nothing."""
    slow = replace(situation(10, commit=15.0), commit_at_best=0.1)
    chosen = plan(slow)
    assert chosen.choice is Choice.LOWER
    assert "which is tried" in chosen.reason
    assert plan(replace(slow, commit_at_best=math.inf)).choice is Choice.KEEP
    assert "a commit takes 11.0 s" in plan(replace(slow, commit_at_best=11.0)).reason


def test_a_background_checkpoint_whose_rest_fits_comes_before_a_lower_level() -> None:
    """Only where it is newer than the last; and where everything fits it gives way."""
    underway = Underway(step=110, age=40.0, left=300 * MIB)
    chosen = plan(situation(10, background=underway, last=Earlier(90, 100.0)))
    assert chosen.choice is Choice.PROMOTE
    assert "step 110, 40 s of training before this one" in chosen.reason
    assert chosen.end == pytest.approx(1003.5)
    assert plan(situation(10, background=underway, last=Earlier(110, 40.0))).choice is Choice.LOWER
    assert plan(situation(20, background=underway)).choice is Choice.FULL
    assert plan(situation(3, background=underway)).choice is Choice.KEEP


def test_one_of_this_very_step_is_let_finish_though_everything_fits() -> None:
    """It is the same, and nearer its end."""
    assert plan(situation(20, background=Underway(120, 0.0, MIB))).choice is Choice.PROMOTE
    assert plan(situation(20, rate=None, background=Underway(120, 0.0, MIB))).choice is Choice.PROMOTE
    assert plan(situation(20, background=Underway(120, 0.0, 1200 * MIB))).choice is Choice.FULL


def test_rounded_moments_are_for_those_who_allow_them() -> None:
    sizes = Sizes(400 * MIB, 800 * MIB, rounded=400 * MIB)
    assert plan(situation(10, sizes=sizes)).choice is Choice.FULL_LOSSY
    assert "its moments rounded" in plan(situation(10, sizes=sizes)).reason
    assert plan(situation(20, sizes=sizes)).choice is Choice.FULL
    assert plan(situation(10, sizes=replace(sizes, rounded=None))).choice is Choice.LOWER
    assert plan(situation(10, sizes=replace(sizes, rounded=800 * MIB))).choice is Choice.LOWER


def test_what_is_unchanged_needs_no_time() -> None:
    """A frozen base of 14 GiB does not keep an adapter from being saved whole."""
    frozen = Sizes(14 * 1024 * MIB + MIB, 2 * MIB, unchanged_parameters=14 * 1024 * MIB)
    assert plan(situation(2, sizes=frozen)).choice is Choice.FULL


def test_of_a_link_that_is_not_known_the_best_is_hoped() -> None:
    """And cut down by what the first objects tell."""
    at = situation(10, rate=None)
    chosen = plan(at)
    assert (chosen.choice, chosen.end, chosen.slack) == (Choice.FULL, None, None)
    assert "how fast is not known yet" in chosen.reason
    assert chosen.fall_back_at == at.deadline - 1.0
    assert replan(chosen, at, Landed(a=MIB)) == chosen
    assert replan(chosen, replace(at, deadline=1005.0), Landed(a=MIB)).fall_back_at == 1004.0
    slow = replace(at, rate=Rate.exactly(50 * MIB))
    assert replan(chosen, slow, Landed(a=MIB)).choice is Choice.LOWER
    assert replan(chosen, replace(at, rate=Rate.exactly(200 * MIB)), Landed(a=MIB)).choice is Choice.FULL


def test_what_may_fit_is_tried_where_nothing_else_would() -> None:
    """A rate that was measured beside training is no reason to save nothing."""
    at = replace(situation(4), rate=Rate(100 * MIB, 90 * MIB, 200 * MIB))
    chosen = plan(at)
    assert chosen.choice is Choice.LOWER
    assert chosen.slack == pytest.approx(-0.5)
    assert "tried" in chosen.reason
    whole = plan(replace(at, sizes=Sizes(400 * MIB, 0)))
    assert whole.choice is Choice.FULL


def test_what_misses_on_a_bad_day_is_made_safe_on_the_way() -> None:
    """Where that leaves the time; else there is a moment at which the lower level is the way out."""
    at = replace(situation(14), rate=Rate(100 * MIB, 80 * MIB, 120 * MIB))
    assert plan(at).lower_first
    assert plan(at).end == pytest.approx(1013.0)
    near = replace(at, deadline=1012.6)
    assert plan(near).choice is Choice.FULL
    assert not plan(near).lower_first
    assert plan(near).fall_back_at == pytest.approx(1011.6)
    assert not plan(replace(at, deadline=1100.0)).lower_first
    assert replan(plan(near), replace(near, deadline=1014.0), Landed()).lower_first


def test_a_deadline_that_moves_earlier_cuts_a_plan_down() -> None:
    """What has left for the store counts."""
    at = situation(20)
    chosen = plan(at)
    later = replace(at, now=1006.0, deadline=1014.0)
    landed = Landed(a=400 * MIB, b=164 * MIB, b_begun=True)
    assert replan(chosen, later, landed).choice is Choice.FULL
    assert replan(chosen, later, landed).end == pytest.approx(1006 + 7 - 0.64 + 0.5)
    cut = replan(chosen, replace(later, deadline=1012.0), landed)
    assert cut.choice is Choice.LOWER
    assert cut.end == pytest.approx(1006.5)
    assert replan(cut, later, landed).choice is Choice.LOWER
    done = Landed(a=400 * MIB, b=800 * MIB)
    assert replan(chosen, replace(later, deadline=1006.1), done).choice is Choice.FULL


def test_moments_are_rounded_in_the_middle_only_before_the_first_is_begun() -> None:
    at = situation(10, rate=None, sizes=Sizes(400 * MIB, 800 * MIB, rounded=400 * MIB))
    chosen = plan(at)
    known = replace(at, now=1001.0, rate=Rate.exactly(100 * MIB))
    landed = Landed(a=100 * MIB)
    assert replan(chosen, known, landed).choice is Choice.FULL_LOSSY
    assert replan(chosen, known, replace(landed, b_begun=True)).choice is Choice.LOWER


def test_moments_are_taken_as_they_are_after_all_where_the_link_is_better_than_was_thought() -> None:
    """Where that fits on a bad day too, or it would go to and fro; and while none of them is begun."""
    at = situation(10, sizes=Sizes(400 * MIB, 800 * MIB, rounded=400 * MIB))
    chosen = plan(at)
    assert chosen.choice is Choice.FULL_LOSSY
    better = replace(at, now=1001.0, rate=Rate(200 * MIB, 150 * MIB, 250 * MIB))
    landed = Landed(a=200 * MIB)
    assert replan(chosen, better, landed).choice is Choice.FULL
    assert replan(chosen, better, replace(landed, b_begun=True)).choice is Choice.FULL_LOSSY
    uncertain = replace(better, rate=Rate(130 * MIB, 110 * MIB, 150 * MIB))
    assert replan(chosen, uncertain, landed).choice is Choice.FULL_LOSSY


def test_a_background_checkpoint_that_does_not_get_there_gives_way() -> None:
    """To the lower level, where that fits; else it is tried to the end."""
    at = situation(10, background=Underway(110, 40.0, 700 * MIB))
    chosen = plan(at)
    assert chosen.choice is Choice.PROMOTE
    assert (
        replan(chosen, replace(at, now=1002.0, background=Underway(110, 40.0, 500 * MIB)), Landed()).end
        == 1007.5
    )
    stalled = replace(at, now=1004.0)
    assert replan(chosen, stalled, Landed()).choice is Choice.LOWER
    later = replan(chosen, replace(at, now=1007.0), Landed())
    assert later.choice is Choice.PROMOTE
    assert later.slack == pytest.approx(-4.5)


# --- never, always ---


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


# --- beside a link that is played byte by byte ---


def small() -> Iterator[Situation]:
    """Every one with small numbers: some twenty thousand."""
    backgrounds = [None, Underway(9, 5.0, 2), Underway(10, 0.0, 2), Underway(7, 60.0, 3)]
    for a, b, rounded, rate, left, commit in itertools.product(
        range(5), range(5), (None, 1, 2), (1, 2, 3), range(9), (0, 1, 2)
    ):
        for background in backgrounds:
            at = Situation(
                100.0, 100.0 + left, 10, Sizes(a, b, rounded), Rate.exactly(rate), commit, background
            )
            yield replace(at, last=Earlier(8, 30.0))


def arrives(nbytes: int, at: Situation) -> bool:
    """Whether so many bytes and a commit get through, sent one by one; time counts in turns of one byte."""
    assert at.rate is not None
    rate = int(at.rate.expected)
    turns = 0
    for _ in range(nbytes):
        turns += 1
    return turns + int(at.commit) * rate <= int(at.deadline - at.now) * rate


def best(at: Situation) -> Choice:
    """By trying each, the best first."""
    sizes, found = at.sizes, at.background
    if found is not None and found.step == 10 and found.left < sizes.a + sizes.b and arrives(found.left, at):
        return Choice.PROMOTE
    if arrives(sizes.a + sizes.b, at):
        return Choice.FULL
    if found is not None and found.step > 8 and arrives(found.left, at):
        return Choice.PROMOTE
    if sizes.rounded is not None and sizes.rounded < sizes.b and arrives(sizes.a + sizes.rounded, at):
        return Choice.FULL_LOSSY
    return Choice.LOWER if arrives(sizes.a, at) else Choice.KEEP


def test_every_small_one_is_planned_as_trying_would() -> None:
    seen = set()
    for at in small():
        chosen = plan(at)
        assert chosen.choice is best(at), at
        seen.add(chosen.choice)
    assert seen == set(Choice)


def played(at: Situation, turns: list[int], chunk: int) -> tuple[list[Choice], str]:
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
        if now + at.commit > at.deadline or current.choice is Choice.KEEP:
            break
        if sent == whole:
            return held, "full"
        if sent >= at.sizes.a and (current.lower_first or now >= current.fall_back_at):
            committed = "lower"
        sent = min(whole, sent + carried)
        if sent:
            rate = rate or Rate.exactly(sum(turns[: number + 1]) / (number + 1))
        landed = sent if sent == whole else sent // chunk * chunk
        a, b = min(landed, at.sizes.a), max(0, landed - at.sizes.a)
        tiers = Landed(a, b, committed=bool(committed))
        current = replan(current, replace(at, now=now + 1, rate=rate), tiers)
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
    at = Situation(50.0, 50.0 + left, 10, Sizes(a * rate, b * rate), Rate.exactly(rate), float(commit))
    held, committed = played(at, [rate] * (left + 1), 1 if chunk == 1 else rate)
    assert len(set(held)) == 1
    assert committed == {Choice.FULL: "full", Choice.LOWER: "lower", Choice.KEEP: ""}[held[0]]


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
    at = Situation(
        0.0, float(len(turns)), 10, Sizes(a, b), None if rate is None else Rate.exactly(rate), float(commit)
    )
    if plan(at).choice is Choice.KEEP:
        return
    _, committed = played(at, [*turns, 0], chunk)
    # Twice a commit's seconds before the end is the last moment that is looked for.
    in_time = int(at.deadline) - 2 * commit
    if in_time > 0 and sum(turns[:in_time]) >= a:
        assert committed
    if commit == 0 and sum(turns) >= a + b:
        assert committed == "full"
