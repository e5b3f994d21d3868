"""A drill's verdict: the same sentence as the doctor's, from what happened."""

from __future__ import annotations

from typing import Any

from spotguard.doctor.rehearsal import as_json, fit_of

GIB = 2**30


def an_outcome(**more: Any) -> dict[str, Any]:
    """All of 84 GiB in 80 s, the first byte after 2 s."""
    said = {"committed": 82.0, "level": "full", "bytes": 84 * GIB, "rate": 84 * GIB / 80, "first_byte": 2.0}
    return {**said, "left": 120.0, "reserve": 12.0, **more}


def test_what_was_saved_in_time_fits_with_what_was_left() -> None:
    fit = fit_of(an_outcome(), 84 * GIB)
    assert fit is not None
    assert fit.verdict() == "84.0 GiB in 108.0 s needs 0.79 GiB/s; measured 1.05: fits with 26.0 s to spare"
    assert as_json(fit)["slack_seconds"] == 26.0


def test_weights_alone_say_what_all_of_it_would_need() -> None:
    fit = fit_of(an_outcome(level="weights", bytes=28 * GIB, rate=0.28 * GIB, committed=101.0), 84 * GIB)
    assert fit is not None
    assert fit.verdict().startswith("84.0 GiB in 108.0 s needs")
    assert fit.fits is False


def test_what_was_not_committed_has_no_rate() -> None:
    fit = fit_of(an_outcome(committed=None, level="", bytes=0, rate=None, first_byte=None), 84 * GIB)
    assert fit is not None
    assert (fit.fits, as_json(fit)["slack_seconds"]) == (None, None)


def test_who_saves_by_himself_gets_no_verdict() -> None:
    assert fit_of(an_outcome(bytes=0, rate=None), 0) is None
