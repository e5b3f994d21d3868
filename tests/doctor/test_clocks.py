"""This machine's clock beside others': small differences mean nothing, large ones are refused."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from spotguard.doctor.clocks import Dates, judge
from spotguard.doctor.findings import Finding
from tests.fakes.clock import ManualClock


def told(ahead: float, late: float = 0.0) -> Finding:
    """By an answer of a clock that this machine is ahead of by so much, read `late` seconds into its second."""
    clock = ManualClock(wall=1_800_000_000.0 + ahead + late)
    dates = Dates(clock)
    dates.hear("the store", {"Date": formatdate(1_800_000_000.0, usegmt=True)})
    return judge(dates)


@pytest.mark.parametrize("ahead", [0.0, 4.9, -5.0])
def test_a_few_seconds_are_nothing(ahead: float) -> None:
    """A date has whole seconds, and has come a long way."""
    assert told(ahead, late=0.9).state == "ok"


@pytest.mark.parametrize(
    ("ahead", "words"), [(61.0, "60 s ahead of the store's"), (-60.0, "60 s behind the store's")]
)
def test_a_minute_is_a_warning(ahead: float, words: str) -> None:
    found = told(ahead)
    assert found.state == "warning"
    assert found.found.startswith(words)
    assert "timedatectl set-ntp true" in found.advice


@pytest.mark.parametrize("ahead", [400.0, -400.0, 86400.0])
def test_more_than_five_minutes_are_refused(ahead: float) -> None:
    found = told(ahead)
    assert found.state == "fails"
    assert "refused" in found.found
    assert "timedatectl set-ntp true" in found.advice


@pytest.mark.parametrize("headers", [{}, {"Date": ""}, {"Date": "yesterday"}])
def test_an_answer_without_a_date_says_nothing(headers: dict[str, str]) -> None:
    dates = Dates(ManualClock())
    dates.hear("the store", headers)
    assert judge(dates).facts == {"skew_seconds": None}
