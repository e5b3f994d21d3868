"""Whether a save fits into the warning, and in which words."""

from __future__ import annotations

import pytest

from spotguard.agent.core.budget import SIGTERM_WINDOW, Fit, expected_window, reserve_of
from tests.cases import cases

GIB = 2**30


def test_one_that_fits_says_by_how_much() -> None:
    fit = Fit(84 * GIB, 1.1 * GIB, window=105.0, reserve=10.0)
    assert fit.fits is True
    assert fit.verdict() == "84.0 GiB in 95.0 s needs 0.88 GiB/s; measured 1.10: fits with 18.6 s to spare"


def test_one_that_does_not_says_what_is_missing_and_what_would_do() -> None:
    fit = Fit(84 * GIB, GIB // 2, window=105.0, reserve=10.0, commit=1.0, configured=10.0)
    assert fit.fits is False
    assert (
        fit.verdict()
        == "84.0 GiB in 95.0 s needs 0.89 GiB/s; measured 0.50: does not fit, 74.0 s are missing"
    )
    assert fit.most == 47 * GIB
    assert fit.enough == pytest.approx(179.0)
    assert Fit(47 * GIB, GIB // 2, 105.0, 10.0, 1.0).fits is True
    assert Fit(84 * GIB, GIB // 2, 179.0, 10.0, 1.0).fits is True


@pytest.mark.parametrize("rate", [None, 0.0])
def test_an_unseen_link_gives_no_verdict(rate: float | None) -> None:
    fit = Fit(GIB, rate, window=30.0, reserve=3.0)
    assert (fit.seconds, fit.slack, fit.fits, fit.most, fit.enough) == (None, None, None, None, None)
    assert fit.verdict() == "1.0 GiB in 27.0 s needs 37.93 MiB/s; how fast the link is is not known yet"


def test_a_commit_longer_than_the_window_needs_no_rate() -> None:
    fit = Fit(10, 1e6, window=4.0, reserve=2.0, commit=3.0)
    assert fit.fits is False
    assert fit.most == 0
    assert (
        fit.verdict() == "10.0 B in 2.0 s cannot be committed; measured 0.95: does not fit, 1.0 s are missing"
    )


@pytest.mark.parametrize(
    ("cloud", "configured", "window"),
    [
        ("aws", None, 120.0),
        ("aws", 60.0, 60.0),
        ("aws", 600.0, 120.0),  # a notice says its own time, and a longer word does not move it
        ("gcp", None, 30.0),
        ("gcp", 120.0, 120.0),  # it says none: the user's word counts
        ("azure", 120.0, 30.0),
        ("none", None, SIGTERM_WINDOW),  # the only notice there
        ("none", 90.0, 90.0),
    ],
)
def test_the_window_is_the_clouds_or_what_was_said(
    cloud: str, configured: float | None, window: float
) -> None:
    assert expected_window(cloud, configured) == window


def test_the_reserve_leaves_time_to_save() -> None:
    assert [reserve_of(window, None) for window in (120.0, 30.0, 4.0)] == [12.0, 3.0, 2.0]
    assert [reserve_of(window, 20.0) for window in (120.0, 30.0)] == [20.0, 15.0]
    assert [reserve_of(left, None) for left in (29.0, 10.0)] == [3.0, 3.0], "seen late"


@cases("configured", [None, 0.0, 5.0, 20.0])
@cases("seconds", [0.5, 2.0, 4.0, 27.0, 35.0, 60.0, 100.0, 107.9, 110.0, 5000.0])
def test_the_window_that_would_be_enough_is_enough(seconds: float, configured: float | None) -> None:
    """With the reserve of such a window, which grows with it; and a little less is too little."""
    enough = Fit(
        int(seconds * 1000), 1000.0, 30.0, reserve_of(30.0, configured), configured=configured
    ).enough
    assert enough is not None
    for window, fits in ((enough + 0.01, True), (enough - 0.01, False)):
        there = Fit(
            int(seconds * 1000), 1000.0, window, reserve_of(window, configured), configured=configured
        )
        assert there.fits is fits, window


def test_a_tiny_state_needs_next_to_nothing() -> None:
    configured = Fit(198 * 1024, GIB, window=25.0, reserve=3.0).verdict()
    assert (
        configured
        == "198.0 KiB in 22.0 s needs less than 0.01 GiB/s; measured 1.00: fits with 22.0 s to spare"
    )
    assert Fit(192 * 2**20, GIB, window=25.0, reserve=3.0).verdict().startswith("192.0 MiB in 22.0 s needs ")
