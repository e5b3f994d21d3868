"""A plan takes the most that fits, says its numbers, and is cut down by what happens."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

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

MIB = 2**20


def situation(
    seconds: float,
    *,
    rate: float | None = 100 * MIB,
    sizes: SaveSizes = SaveSizes(400 * MIB, 800 * MIB),  # noqa: B008 - a value, and frozen
    commit: float = 0.5,
    background: UploadInProgress | None = None,
    last: EarlierCheckpoint | None = None,
) -> BudgetInputs:
    known = None if rate is None else LinkRate.exactly(rate)
    return BudgetInputs(1000.0, 1000.0 + seconds, 120, sizes, known, commit, background, last)


@pytest.mark.parametrize(
    ("left", "choice", "said"),
    [
        (20, BudgetChoice.FULL, "the full state: 1.2 GiB at 100 MiB/s need 12.5 s, and 20.0 s are left"),
        (
            10,
            BudgetChoice.LOWER,
            "parameters and extras: 400 MiB at 100 MiB/s need 4.5 s, and 10.0 s are left",
        ),
        (
            3,
            BudgetChoice.KEEP,
            "alone do not fit: 400 MiB at 100 MiB/s need 4.5 s, and 3.0 s are left; step 90 stays",
        ),
        (
            0.1,
            BudgetChoice.KEEP,
            "a commit takes 0.5 s, and 0.1 s are left; step 90 stays, 34 s of training before",
        ),
        (math.inf, BudgetChoice.FULL, "there is no deadline"),
    ],
)
def test_each_says_its_numbers(left: float, choice: BudgetChoice, said: str) -> None:
    chosen = plan(situation(left, last=EarlierCheckpoint(90, 34.0)))
    assert chosen.choice is choice
    assert said in chosen.reason


def test_slow_commits_do_not_keep_a_save_from_being_tried() -> None:
    """Where the quickest of the last few would still be in time: nothing is said to fit, and trying loses nothing."""
    slow = replace(situation(10, commit=15.0), commit_at_best=0.1)
    chosen = plan(slow)
    assert chosen.choice is BudgetChoice.LOWER
    assert "spotguard tries it" in chosen.reason
    assert plan(replace(slow, commit_at_best=math.inf)).choice is BudgetChoice.KEEP
    assert "a commit takes 11.0 s" in plan(replace(slow, commit_at_best=11.0)).reason


def test_weights_that_fit_on_a_good_day_of_the_link_are_tried() -> None:
    unsure = situation(10, last=EarlierCheckpoint(90, 34.0))
    assert plan(replace(unsure, rate=LinkRate(30 * MIB, 20 * MIB, 60 * MIB))).choice is BudgetChoice.LOWER
    assert plan(replace(unsure, rate=LinkRate.exactly(30 * MIB))).choice is BudgetChoice.KEEP


def test_without_a_commit_an_unlikely_save_is_tried() -> None:
    """A store that answered nobody for seconds is all that is known of the link: it may be back."""
    stood_still = situation(28.7, rate=8 * 1024.0)
    assert plan(replace(stood_still, last=EarlierCheckpoint(90, 34.0))).choice is BudgetChoice.KEEP
    chosen = plan(stood_still)
    assert chosen.choice is BudgetChoice.LOWER
    assert (
        "need 51200.5 s, and 28.7 s are left; spotguard tries it, because nothing else would fit"
        in chosen.reason
    )
    assert chosen.slack is not None
    assert chosen.slack < 0
    alone = plan(replace(stood_still, sizes=SaveSizes(400 * MIB, 0)))
    assert (alone.choice, alone.lower_first) == (BudgetChoice.FULL, False)
    late = plan(replace(stood_still, deadline=1000.1))
    assert late.choice is BudgetChoice.KEEP
    assert late.reason.endswith("and no sound checkpoint is known before this one")


def test_a_background_checkpoint_whose_rest_fits_comes_before_a_lower_level() -> None:
    """Only where it is newer than the last; and where everything fits it gives way."""
    underway = UploadInProgress(step=110, age=40.0, left=300 * MIB)
    chosen = plan(situation(10, background=underway, last=EarlierCheckpoint(90, 100.0)))
    assert chosen.choice is BudgetChoice.PROMOTE
    assert "step 110, 40 s of training before this one" in chosen.reason
    assert chosen.end == pytest.approx(1003.5)
    assert (
        plan(situation(10, background=underway, last=EarlierCheckpoint(110, 40.0))).choice
        is BudgetChoice.LOWER
    )
    assert plan(situation(20, background=underway)).choice is BudgetChoice.FULL
    assert plan(situation(3, background=underway)).choice is BudgetChoice.KEEP


def test_one_of_this_very_step_is_let_finish_though_everything_fits() -> None:
    """It is the same, and nearer its end."""
    assert plan(situation(20, background=UploadInProgress(120, 0.0, MIB))).choice is BudgetChoice.PROMOTE
    assert (
        plan(situation(20, rate=None, background=UploadInProgress(120, 0.0, MIB))).choice
        is BudgetChoice.PROMOTE
    )
    assert plan(situation(20, background=UploadInProgress(120, 0.0, 1200 * MIB))).choice is BudgetChoice.FULL


def test_rounded_moments_are_for_those_who_allow_them() -> None:
    sizes = SaveSizes(400 * MIB, 800 * MIB, rounded=400 * MIB)
    assert plan(situation(10, sizes=sizes)).choice is BudgetChoice.FULL_LOSSY
    assert "rounded moments" in plan(situation(10, sizes=sizes)).reason
    assert plan(situation(20, sizes=sizes)).choice is BudgetChoice.FULL
    assert plan(situation(10, sizes=replace(sizes, rounded=None))).choice is BudgetChoice.LOWER
    assert plan(situation(10, sizes=replace(sizes, rounded=800 * MIB))).choice is BudgetChoice.LOWER


def test_unchanged_bytes_need_no_time() -> None:
    """A frozen base of 14 GiB does not keep an adapter from being saved whole."""
    frozen = SaveSizes(14 * 1024 * MIB + MIB, 2 * MIB, unchanged=14 * 1024 * MIB)
    assert plan(situation(2, sizes=frozen)).choice is BudgetChoice.FULL


def test_an_unknown_rate_plans_the_full_save() -> None:
    """And cut down by what the first objects tell."""
    at = situation(10, rate=None)
    chosen = plan(at)
    assert (chosen.choice, chosen.end, chosen.slack) == (BudgetChoice.FULL, None, None)
    assert "at a rate that is not known yet" in chosen.reason
    assert chosen.fall_back_at == at.deadline - 1.0
    assert replan(chosen, at, StoredBytes(a=MIB)) == chosen
    assert replan(chosen, replace(at, deadline=1005.0), StoredBytes(a=MIB)).fall_back_at == 1004.0
    slow = replace(at, rate=LinkRate.exactly(50 * MIB))
    assert replan(chosen, slow, StoredBytes(a=MIB)).choice is BudgetChoice.LOWER
    assert (
        replan(chosen, replace(at, rate=LinkRate.exactly(200 * MIB)), StoredBytes(a=MIB)).choice
        is BudgetChoice.FULL
    )


def test_a_doubtful_save_is_tried_if_nothing_else_would_fit() -> None:
    """A rate that was measured beside training is no reason to save nothing."""
    at = replace(situation(4), rate=LinkRate(100 * MIB, 90 * MIB, 200 * MIB))
    chosen = plan(at)
    assert chosen.choice is BudgetChoice.LOWER
    assert chosen.slack == pytest.approx(-0.5)
    assert "spotguard tries it" in chosen.reason
    whole = plan(replace(at, sizes=SaveSizes(400 * MIB, 0)))
    assert whole.choice is BudgetChoice.FULL


def test_a_save_that_misses_on_a_bad_day_commits_the_lower_level_on_the_way() -> None:
    """Where that leaves the time; else there is a moment at which the lower level is the way out."""
    at = replace(situation(14), rate=LinkRate(100 * MIB, 80 * MIB, 120 * MIB))
    assert plan(at).lower_first
    assert plan(at).end == pytest.approx(1013.0)
    near = replace(at, deadline=1012.6)
    assert plan(near).choice is BudgetChoice.FULL
    assert not plan(near).lower_first
    assert plan(near).fall_back_at == pytest.approx(1011.6)
    assert not plan(replace(at, deadline=1100.0)).lower_first
    assert replan(plan(near), replace(near, deadline=1014.0), StoredBytes()).lower_first


def test_weights_are_committed_early_if_moments_need_seconds_and_a_restore_takes_them() -> None:
    """Clouds break their promise. The plan stays a full one, and moments that are nearly there are no reason."""
    at = replace(situation(30), lower_counts=True)
    chosen = plan(at)
    assert (chosen.choice, chosen.early, chosen.lower_first) == (BudgetChoice.FULL, True, False)
    assert chosen.fall_back_at == plan(situation(30)).fall_back_at
    assert chosen.end == plan(situation(30)).end
    assert not plan(situation(30)).early
    assert not plan(replace(at, sizes=SaveSizes(400 * MIB, 200 * MIB))).early
    assert not plan(replace(at, rate=None)).early
    assert replan(plan(replace(at, rate=None)), at, StoredBytes(a=100 * MIB)).early
    assert replan(chosen, at, StoredBytes(a=400 * MIB, b=590 * MIB)).early
    assert not replan(chosen, at, StoredBytes(a=400 * MIB, b=600 * MIB)).early
    rounded = SaveSizes(400 * MIB, 800 * MIB, rounded=300 * MIB)
    assert plan(replace(at, deadline=1009.0, sizes=rounded)).early
    assert not plan(replace(at, deadline=1009.0, sizes=replace(rounded, rounded=200 * MIB))).early
    first = plan(replace(at, deadline=1010.0))
    assert (first.choice, first.lower_first, first.early) == (BudgetChoice.LOWER, True, False)


def test_a_deadline_that_moves_earlier_cuts_a_plan_down() -> None:
    """What has left for the store counts."""
    at = situation(20)
    chosen = plan(at)
    later = replace(at, now=1006.0, deadline=1014.0)
    stored = StoredBytes(a=400 * MIB, b=164 * MIB, b_begun=True)
    assert replan(chosen, later, stored).choice is BudgetChoice.FULL
    assert replan(chosen, later, stored).end == pytest.approx(1006 + 7 - 0.64 + 0.5)
    cut = replan(chosen, replace(later, deadline=1012.0), stored)
    assert cut.choice is BudgetChoice.LOWER
    assert cut.end == pytest.approx(1006.5)
    assert replan(cut, later, stored).choice is BudgetChoice.LOWER
    done = StoredBytes(a=400 * MIB, b=800 * MIB)
    assert replan(chosen, replace(later, deadline=1006.1), done).choice is BudgetChoice.FULL


def test_moments_are_rounded_in_the_middle_only_before_the_first_is_begun() -> None:
    at = situation(10, rate=None, sizes=SaveSizes(400 * MIB, 800 * MIB, rounded=400 * MIB))
    chosen = plan(at)
    known = replace(at, now=1001.0, rate=LinkRate.exactly(100 * MIB))
    stored = StoredBytes(a=100 * MIB)
    assert replan(chosen, known, stored).choice is BudgetChoice.FULL_LOSSY
    assert replan(chosen, known, replace(stored, b_begun=True)).choice is BudgetChoice.LOWER


def test_moments_are_taken_as_they_are_after_all_where_the_link_is_better_than_was_thought() -> None:
    """Where that fits on a bad day too, or it would go to and fro; and while none of them is begun."""
    at = situation(10, sizes=SaveSizes(400 * MIB, 800 * MIB, rounded=400 * MIB))
    chosen = plan(at)
    assert chosen.choice is BudgetChoice.FULL_LOSSY
    better = replace(at, now=1001.0, rate=LinkRate(200 * MIB, 150 * MIB, 250 * MIB))
    stored = StoredBytes(a=200 * MIB)
    assert replan(chosen, better, stored).choice is BudgetChoice.FULL
    assert replan(chosen, better, replace(stored, b_begun=True)).choice is BudgetChoice.FULL_LOSSY
    uncertain = replace(better, rate=LinkRate(130 * MIB, 110 * MIB, 150 * MIB))
    assert replan(chosen, uncertain, stored).choice is BudgetChoice.FULL_LOSSY


def test_a_background_checkpoint_that_does_not_get_there_gives_way() -> None:
    """To the lower level, where that fits; else it is tried to the end."""
    at = situation(10, background=UploadInProgress(110, 40.0, 700 * MIB))
    chosen = plan(at)
    assert chosen.choice is BudgetChoice.PROMOTE
    assert (
        replan(
            chosen, replace(at, now=1002.0, background=UploadInProgress(110, 40.0, 500 * MIB)), StoredBytes()
        ).end
        == 1007.5
    )
    stalled = replace(at, now=1004.0)
    assert replan(chosen, stalled, StoredBytes()).choice is BudgetChoice.LOWER
    later = replan(chosen, replace(at, now=1007.0), StoredBytes())
    assert later.choice is BudgetChoice.PROMOTE
    assert later.slack == pytest.approx(-4.5)
