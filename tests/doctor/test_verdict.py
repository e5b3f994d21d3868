"""The verdict: the sentence, and what would make it fit."""

from __future__ import annotations

import pytest

from spotguard.doctor.checks.window import count_on
from spotguard.doctor.finding import Finding
from spotguard.doctor.rate_measurement import Measured
from spotguard.doctor.verdict import judge
from tests.fakes.patient import options

GIB = 2**30


def judged(
    nbytes: int | None, rate: float | None, cloud: str = "aws", window: float | None = None, **said: str
) -> Finding:
    measured = Measured(rate, 0, 2.0, 8)
    return judge(count_on(cloud, window, None, None), nbytes, measured, 0.0, options(**said), cloud)


def test_one_that_fits_says_by_how_much() -> None:
    found = judged(84 * GIB, 1.1 * GIB)
    assert found.state == "ok"
    assert found.found == "84.0 GiB in 108.0 s needs 0.78 GiB/s; measured 1.10: fits with 31.6 s to spare"
    assert (found.facts["fits"], found.facts["slack_seconds"]) == (True, 31.64)


def test_one_that_hardly_fits_is_a_warning() -> None:
    found = judged(100 * GIB, GIB)
    assert (found.state, found.facts["fits"]) == ("warning", True)
    assert "a busier link" in found.advice


def test_one_that_does_not_says_every_way_out() -> None:
    found = judged(84 * GIB, 0.5 * GIB)
    assert (found.state, found.facts["fits"]) == ("fails", False)
    assert found.found.endswith("does not fit, 60.0 s are missing")
    for way in (
        "54.0 GiB would fit, and a warning of 187 s would be enough",
        "shard it over 2 machines",
        "the weights alone are saved in time",
        "--every",
    ):
        assert way in found.advice
    assert "--lossy-moments" not in found.advice, "two thirds of it would not fit either"


def test_rounding_is_advised_where_it_would_do_and_was_not_asked_for() -> None:
    assert "--lossy-moments" in judged(60 * GIB, 0.5 * GIB).advice
    assert "--lossy-moments" not in judged(60 * GIB, 0.5 * GIB, lossy_moments="true").advice


def test_a_longer_notice_of_gcps_is_advised_where_it_would_be_enough() -> None:
    assert "--preemption-notice-duration=120s" in judged(60 * GIB, GIB, "gcp").advice
    assert "--preemption-notice-duration=120s" not in judged(600 * GIB, GIB, "gcp").advice
    assert "--preemption-notice-duration=120s" not in judged(60 * GIB, GIB, "azure").advice


@pytest.mark.parametrize("seconds", [22, 35, 100, 112])
def test_the_window_that_doctor_calls_enough_is_enough(seconds: int) -> None:
    """Its own numbers, fed back in."""
    enough = judged(seconds * GIB, GIB, "none", 20.0).facts["enough_seconds"]
    assert judged(seconds * GIB, GIB, "none", enough).facts["fits"] is True


def test_a_longer_notice_of_gcps_is_not_advised_where_its_reserve_leaves_too_little() -> None:
    assert judged(112 * GIB, GIB, "gcp", 120.0).facts["fits"] is False
    assert "--preemption-notice-duration" not in judged(112 * GIB, GIB, "gcp").advice


def test_without_a_job_it_says_what_would_fit() -> None:
    found = judged(None, GIB)
    assert (found.state, found.facts["fits"], found.facts["most_bytes"]) == ("ok", None, 108 * GIB)
    assert found.found == "108.0 GiB would fit into 108 s at 1.0 GiB/s"


def test_without_a_rate_nothing_is_claimed() -> None:
    for nbytes in (None, GIB):
        found = judged(nbytes, None)
        assert (found.state, found.facts["fits"]) == ("fails", None)
        assert found.found.startswith("not known")


def test_a_slow_store_takes_its_commit_from_the_window() -> None:
    window = count_on("none", 30.0, None, None)
    found = judge(window, GIB, Measured(GIB, 0, 2.0, 8), 2.0, options(), "none")
    assert found.facts["seconds"] == 5.0


def test_a_job_whose_own_saves_were_slower_is_a_warning() -> None:
    """The link is not all that holds a save up."""
    window = count_on("aws", None, None, None)
    measured = Measured(GIB, 0, 2.0, 8)
    found = judge(window, 10 * GIB, measured, 0.0, options(), "aws", own=300.0)
    assert (found.state, found.facts["fits"]) == ("warning", True)
    assert "by the job's own last saves it takes 300 s" in found.found
    assert "spotguard drill" in found.advice
    assert judge(window, 10 * GIB, measured, 0.0, options(), "aws", own=20.0).state == "ok"


def test_a_save_that_fits_but_is_misused_fails() -> None:
    window = count_on("aws", None, None, None)
    found = judge(window, GIB, Measured(GIB, 0, 2.0, 8), 0.0, options(), "aws", misused=True)
    assert (found.state, found.facts["fits"]) == ("fails", True)
    assert found.found.endswith("to spare, but the script does not let it be saved right")
    assert found.advice == "see what fails above"
