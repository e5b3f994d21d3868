"""A drill's verdict: the same sentence as the doctor's, from what happened."""

from __future__ import annotations

from typing import Any

import pytest

from spotguard.doctor.drill_verdict import DrillVerdict, judge
from tests.doctor.checks.test_job import a_rank

GIB = 2**30


def an_outcome(**more: Any) -> dict[str, Any]:
    """All of 84 GiB in 80 s, the first byte after 2 s."""
    said = {"committed": 82.0, "level": "full", "bytes": 84 * GIB, "rate": 84 * GIB / 80, "first_byte": 2.0}
    return {**said, "less": "", "window": 120.0, "left": 120.0, "reserve": 12.0, **more}


def judged(before: float | None = None, /, **more: Any) -> DrillVerdict:
    found = judge(an_outcome(**more), [a_rank(bytes=84 * GIB, rate=before)])
    assert found is not None
    return found


NOTHING = {"committed": None, "level": "", "bytes": 0, "rate": None, "first_byte": None}


def test_a_save_in_time_fits_with_its_slack() -> None:
    found = judged()
    assert found.verdict() == "84.0 GiB in 108.0 s needs 0.79 GiB/s; measured 1.05: fits with 26.0 s to spare"
    assert (found.fits, found.advice(), found.as_json()["slack_seconds"]) == (True, "", 26.0)


def test_weights_alone_say_what_all_of_it_would_need() -> None:
    found = judged(level="weights", bytes=28 * GIB, rate=0.28 * GIB, committed=101.0)
    assert found.verdict().startswith("84.0 GiB in 108.0 s needs")
    assert "are missing" in found.verdict()
    assert (found.fits, found.as_json()["fits"]) == (False, False)
    assert "would fit, and a warning of" in found.advice()


@pytest.mark.parametrize(
    ("happened", "ends"),
    [
        ({"level": "weights", "bytes": 28 * GIB, "rate": GIB}, "does not fit, the weights alone were saved"),
        (
            {"level": "partial-extras", "less": "rank 1 of 2 has not answered"},
            "saved without the extras of a rank that did not answer",
        ),
        ({"less": "a checkpoint of step 4 was let finish", "bytes": GIB}, "does not fit as it stands"),
        ({**NOTHING, "rate": GIB, "bytes": 10 * GIB}, "NOT saved, nothing was committed"),
        (NOTHING, "NOT saved, nothing was committed"),
    ],
)
def test_lost_state_did_not_fit_whatever_the_numbers_say(happened: dict[str, Any], ends: str) -> None:
    """A save that has just lost the moments, at a rate by which there would have been time."""
    found = judged(**happened)
    assert found.verdict().endswith(f": {ends}")
    assert "to spare" not in found.verdict()
    said = found.as_json()
    assert said["fits"] is False
    assert (said["slack_seconds"], said["most_bytes"], said["enough_seconds"]) == (None, None, None)
    assert "spotguard drill --window" in found.advice()


MISUSE = "the registered optimizer o no longer steps; change o itself"


@pytest.mark.parametrize(
    ("happened", "says"),
    [
        ({}, "fits with 26.0 s to spare; the registered optimizer o no longer steps"),
        ({"level": "weights"}, ": the weights alone were saved; the registered optimizer o no longer steps"),
        (NOTHING, ": NOT saved, nothing was committed; the registered optimizer o no longer steps"),
    ],
)
def test_a_mistake_of_the_script_is_told_with_the_remedy(happened: dict[str, Any], says: str) -> None:
    """Whatever became of the save: a longer warning would mend nothing."""
    found = judge(an_outcome(**happened), [a_rank(bytes=84 * GIB, misuse=MISUSE)])
    assert found is not None
    assert found.verdict().endswith(says)
    assert found.advice() == "change o itself"
    assert found.as_json()["misuse"] == MISUSE


def test_an_uncommitted_drill_is_judged_by_the_rate_of_its_bytes_or_of_earlier_saves() -> None:
    assert judged(**{**NOTHING, "rate": GIB / 2, "bytes": GIB}).fit.rate == GIB / 2
    found = judged(GIB / 4, **NOTHING)
    assert found.fit.rate == GIB / 4
    assert found.verdict().endswith("does not fit, 228.0 s are missing")
    assert "a warning of 374 s would be enough" in found.advice()
    assert judged(None, **NOTHING).fit.rate is None


def test_the_ranks_of_a_run_save_beside_each_other_and_runs_do_not() -> None:
    before = [a_rank(0, rate=100.0), a_rank(1, rate=100.0), a_rank(2, rate=150.0, run_id="other")]
    found = judge(an_outcome(**NOTHING), before)
    assert found is not None
    assert found.fit.rate == 200.0


def test_a_warning_of_less_than_a_second_is_judged_as_what_it_is() -> None:
    """The agent gave it ten, as a last try, and kept three of them back."""
    found = judged(window=0.8, left=0.8, reserve=3.0, committed=0.6, bytes=GIB, rate=2.0 * GIB)
    assert found.verdict().startswith("1.0 GiB in 0.4 s needs")
    assert found.fits is False


def test_a_callback_of_the_user_gets_no_verdict() -> None:
    assert judge(an_outcome(bytes=0, rate=None), []) is None
