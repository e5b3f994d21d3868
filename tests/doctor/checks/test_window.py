"""How many seconds the doctor counts on, and from whose word."""

from __future__ import annotations

import pytest

from spotguard.doctor.checks.window import Counted, count_on


@pytest.mark.parametrize(
    ("cloud", "said", "told", "warning", "state", "whence"),
    [
        ("aws", None, None, 120.0, "ok", "AWS gives them"),
        ("aws", 60.0, None, 60.0, "ok", "--window 60"),
        ("aws", 600.0, None, 120.0, "warning", "--window 600"),
        ("gcp", None, None, 30.0, "warning", "unless the VM was made with more"),
        ("gcp", None, 150.0, 150.0, "ok", "by the metadata service"),
        ("gcp", 120.0, None, 120.0, "ok", "--window 120"),
        ("azure", None, None, 30.0, "ok", "what Azure promises"),
        ("none", None, None, 25.0, "ok", "what a SIGTERM leaves"),
    ],
)
def test_the_window_and_whose_word_it_is(
    cloud: str, said: float | None, told: float | None, warning: float, state: str, whence: str
) -> None:
    window = count_on(cloud, said, told, None)
    assert (window.warning, window.finding.state) == (warning, state)
    assert whence in window.finding.found
    assert bool(window.finding.advice) is (state == "warning")
    assert window.finding.facts["budget_seconds"] == window.budget == warning - window.reserve


def test_a_vm_that_was_made_with_30_s_is_told_how_to_have_120() -> None:
    assert "--preemption-notice-duration=120s" in count_on("gcp", None, None, None).finding.advice


def test_a_window_that_leaves_nothing_fails() -> None:
    window = count_on("none", 0.0, None, None)
    assert (window.finding.state, window.budget) == ("fails", 0.0)
    assert "--window" in window.finding.advice


def test_a_reserve_that_was_said_is_kept_back() -> None:
    window = count_on("aws", None, None, 20.0)
    assert (window.reserve, window.budget) == (20.0, 100.0)
    assert window.finding.found.endswith("20 s in reserve: 100 s for a save")


def test_the_window_of_the_run_beside_it_holds_unless_set() -> None:
    """Who asks beside a job need not know its words; a drill plays the same."""
    run = Counted("gpt-small-7", 60.0, 5.0)
    window = count_on("none", None, None, None, run)
    assert (window.warning, window.reserve, window.said) == (60.0, 5.0, 5.0)
    assert "60 s of warning (what run gpt-small-7 counts on)" in window.finding.found
    window = count_on("none", 90.0, None, 9.0, run)
    assert (window.warning, window.reserve) == (90.0, 9.0)


def test_equal_windows_name_their_origin() -> None:
    window = count_on("aws", None, None, None, Counted("gpt-small-7", 120.0, None))
    assert (window.warning, window.reserve) == (120.0, 12.0)
    assert "AWS gives them" in window.finding.found
