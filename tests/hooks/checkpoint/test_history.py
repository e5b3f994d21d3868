"""The history that a run's checkpoints carry: where attempts began, and how fast they trained."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from spotguard.hooks.checkpoint.format.codec import (
    decode_manifest,
    decode_marker,
    encode_manifest,
    encode_marker,
)
from spotguard.hooks.checkpoint.format.manifest import CommitMarker, RankManifest
from spotguard.hooks.checkpoint.history import AttemptHistory, merged


def begun(*manifests: RankManifest, step: int = 0, own: bool = True, at: float = 100.0) -> AttemptHistory:
    history = AttemptHistory()
    history.restored(manifests, step=step, own=own, now=at, wall=5000.0)
    return history


def manifest(step: int, attempt: int, history: AttemptHistory | None = None, rank: int = 0) -> RankManifest:
    facts = {} if history is None else history.whole
    return RankManifest("run", step, attempt, 0, rank, 2, history=facts)


def test_a_first_start_has_no_earlier_attempts() -> None:
    assert begun().whole == {
        "began": 5000.0,
        "first": 0,
        "step_seconds": None,
        "saves": 0,
        "cost": 0.0,
        "periodic": None,
        "interval": None,
        "phases": {},
        "earlier": [],
    }


def test_the_steps_that_a_save_disturbs_are_kept_apart() -> None:
    """The first one counts to neither: it may compile."""
    history = begun(at=100.0)
    history.boundary(130.0)
    for number in range(1, 6):
        history.boundary(130.0 + 2 * number)
    with history.saving():
        history.boundary(145.0)
        history.boundary(150.0)
    history.boundary(154.0)  # the save ended inside of it
    history.boundary(156.0)
    assert history.step_seconds == (5.0, 2.0)
    with history.saving():
        pass  # within one step
    history.boundary(166.0)
    assert history.facts["step_seconds"] == 2.0


def test_the_time_for_which_training_stood_still_is_no_part_of_a_slower_step() -> None:
    """It is a cost by itself, and would count twice."""
    history = begun(at=100.0)
    for at in (160.0, 170.0, 180.0):
        history.boundary(at)
    with history.saving():
        history.stood_still(5.0)
        history.boundary(195.0)
    assert history.step_seconds == (10.0, 10.0)
    history.boundary(206.0)
    assert history.step_seconds == (10.5, 10.0)


def test_a_rank_without_times_has_none_in_its_records() -> None:
    facts = begun().of_rank(1)
    assert (
        facts["first"],
        [name for name in ("step_seconds", "saves", "cost", "interval") if name in facts],
    ) == (0, [])
    assert begun().of_rank(0) == begun().facts


def test_attempts_from_whose_last_step_training_went_on_are_known() -> None:
    first = replace(manifest(40, 1, begun()), kind="emergency")
    second = manifest(60, 2, begun(first, step=40))
    third = begun(second, step=60)
    assert third.committed_attempts == {1}
    assert [each.get("committed") for each in third.whole["earlier"]] == [1, None]


def test_an_attempt_whose_newest_checkpoint_is_a_drills_is_none_of_those() -> None:
    """Training went on after the drill, and was lost later."""
    drilled = begun()
    with drilled.saving(drill=True):
        newest = replace(manifest(40, 1, drilled), kind="emergency")
    assert begun(newest, step=40).committed_attempts == set()
    preempted = replace(manifest(50, 1, drilled), kind="emergency")  # a notice came later
    assert begun(preempted, step=50).committed_attempts == {1}


def test_the_step_time_of_the_attempt_before_is_known_for_as_many_ranks() -> None:
    first = begun(at=100.0)
    for at in (110.0, 112.0, 114.0):
        first.boundary(at)
    told = manifest(3, 1, first)  # of two ranks
    later = AttemptHistory()
    later.restored((told,), step=3, own=True, now=0.0, wall=0.0, world=2)
    assert later.earlier_step_seconds == 2.0
    later.restored((told,), step=3, own=True, now=0.0, wall=0.0, world=4)
    assert later.earlier_step_seconds == 0.0


def test_checkpoints_that_no_notice_asked_for_are_counted_with_their_cost() -> None:
    history = begun()
    history.interval = 60.0
    history.saved(10, 0.5)
    history.saved(20, 0.25)
    facts = history.facts
    assert (facts["saves"], facts["cost"], facts["periodic"], facts["interval"]) == (2, 0.75, 20, 60.0)
    history.interval = math.inf
    assert history.facts["interval"] is None


def test_each_attempt_hands_on_those_before() -> None:
    first = begun()
    first.saved(90, 1.5)
    second = begun(
        manifest(100, 1), manifest(100, 1, first), step=100
    )  # the first rank was gone at that save
    assert second.whole["from"] == "000000100-0001-0000"
    third = begun(manifest(160, 2, second), step=160)
    assert [(each["attempt"], each["first"], each["last"]) for each in third.whole["earlier"]] == [
        (1, 0, 100),
        (2, 100, 160),
    ]
    assert third.whole["earlier"][0]["cost"] == 1.5
    assert third.facts["first"] == 160


def test_a_second_restore_begins_another_attempt() -> None:
    history = begun()
    history.saved(10, 1.0)
    history.boundary(101.0)
    history.boundary(102.0)
    history.restored((manifest(10, 1, history),), step=10, own=True, now=200.0, wall=6000.0)
    assert (history.facts["saves"], history.facts["step_seconds"], history.facts["first"]) == (0, None, 10)
    assert [each["last"] for each in history.whole["earlier"]] == [10]


def test_another_run_is_named_and_its_attempts_are_not_this_run_s() -> None:
    tuned = begun(manifest(500, 3, begun()), step=500, own=False)
    assert (tuned.facts["run"], tuned.facts["first"], tuned.whole["earlier"]) == ("run", 500, [])


def test_a_checkpoint_of_an_older_version_gives_its_attempt_and_step() -> None:
    assert begun(manifest(40, 1), step=40).whole["earlier"] == [{"attempt": 1, "last": 40}]


def test_a_very_long_history_is_bounded_and_keeps_its_sums() -> None:
    """The oldest entries become one."""
    history = begun()
    for attempt in range(1, 300):
        history.saved(attempt * 10, 1.0)
        history.restored(
            (manifest(attempt * 10, attempt, history),), step=attempt * 10, own=True, now=0.0, wall=0.0
        )
    earlier = history.whole["earlier"]
    assert len(earlier) == 200
    assert (earlier[0]["first"], earlier[0]["last"], earlier[0]["attempts"]) == (0, 1000, 100)
    assert sum(each["cost"] for each in earlier) == 299.0


@pytest.mark.parametrize(
    "earlier",
    [
        5,
        "ab",
        {"a": 1},
        [1] * 300,
        [{"first": 0}] * 300,
        [{"first": 0, "last": "x", "attempt": 1}] * 300,
        [{"attempt": True, "last": 3}, {"attempt": 1, "last": -3}, {"attempt": 1, "last": 10**16}],
    ],
)
def test_a_foreign_history_is_ignored(earlier: Any) -> None:
    """It must not stop a restore, and no later checkpoint carries it."""
    foreign = RankManifest("run", 30, 2, 0, 0, 1, history={"earlier": earlier, "first": [], "cost": math.nan})
    assert begun(foreign, step=30).whole["earlier"] == [{"attempt": 2, "last": 30}]


def test_possible_numbers_of_foreign_entries_stay() -> None:
    entry = {"attempt": 1, "last": 30, "first": 0, "cost": -1e9, "step_seconds": math.inf, "began": 1e300}
    foreign = RankManifest(
        "run", 40, 2, 0, 0, 1, history={"earlier": [{**entry, "run": "b", "x": [1]}] * 500}
    )
    earlier = begun(foreign, step=40).whole["earlier"]
    assert len(earlier) == 200
    assert earlier[1] == {"attempt": 1, "last": 30, "first": 0, "run": "b"}


def test_two_entries_as_one_take_as_long_as_before() -> None:
    one = {"attempt": 1, "began": 5.0, "first": 0, "last": 100, "step_seconds": 1.0, "saves": 1, "cost": 2.0}
    other = {
        "attempt": 2,
        "began": 9.0,
        "first": 100,
        "last": 400,
        "step_seconds": 2.0,
        "saves": 1,
        "cost": 1.0,
    }
    both = {"attempt": 2, "attempts": 2, "began": 5.0, "first": 0, "last": 400, "step_seconds": 1.75}
    assert merged(one, other) == both | {"saves": 2, "cost": 3.0}
    assert "step_seconds" not in merged({"attempt": 1, "last": 3}, {"attempt": 2, "last": 4})


def test_it_is_in_the_manifest_and_in_the_marker() -> None:
    """Of the rank that has it."""
    told = begun()
    ranks = [manifest(7, 1), manifest(7, 1, told, rank=1)]
    assert decode_manifest(encode_manifest(ranks[1]), "k").history == told.whole
    marker = decode_marker(encode_marker(CommitMarker.of(ranks, 1.0)), "k")
    assert marker.history == told.whole
    assert CommitMarker.of(ranks[:1], 1.0).history == {}
