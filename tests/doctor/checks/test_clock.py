"""This machine's clock beside others': small differences mean nothing, large ones are refused where requests are signed."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from spotguard.doctor.checks.clock import Dates, judge
from spotguard.doctor.finding import Finding
from tests.fakes.clock import ManualClock


def told(ahead: float, late: float = 0.0, scheme: str = "s3", *, taken: bool = False) -> Finding:
    """By an answer of a clock that this machine is ahead of by so much, read `late` seconds into its second."""
    clock = ManualClock(wall=1_800_000_000.0 + ahead + late)
    dates = Dates(clock)
    dates.hear("the store", {"Date": formatdate(1_800_000_000.0, usegmt=True)})
    return judge(dates, scheme, taken=taken)


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


@pytest.mark.parametrize("ahead", [400.0, -890.0])
@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_below_a_quarter_of_an_hour_no_signature_is_refused(scheme: str, ahead: float) -> None:
    """But tokens may be: a role is taken by what AWS's STS takes for five minutes."""
    found = told(ahead, scheme=scheme)
    assert found.state == "warning"
    assert "new tokens may be refused from 300 s on, signatures are refused from 900 s on" in found.found


@pytest.mark.parametrize("ahead", [1000.0, -1000.0, 86400.0])
@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_from_a_quarter_of_an_hour_on_signatures_are_refused(scheme: str, ahead: float) -> None:
    found = told(ahead, scheme=scheme)
    assert found.state == "fails"
    assert "signatures are refused from 900 s on" in found.found
    assert "timedatectl set-ntp true" in found.advice


def test_a_clock_that_the_store_accepts_is_not_called_refused() -> None:
    """Not every server that speaks like S3 looks at the time, nor does Azure with a token."""
    found = told(1000.0, taken=True)
    assert (found.state, "this store takes it all the same" in found.found) == ("warning", True)


@pytest.mark.parametrize(
    ("scheme", "words"), [("file", "nothing is signed for a directory"), ("gs", "new tokens may be refused")]
)
@pytest.mark.parametrize("ahead", [360.0, -86400.0])
def test_without_signatures_a_wrong_clock_is_a_warning_at_most(scheme: str, words: str, ahead: float) -> None:
    found = told(ahead, scheme=scheme)
    assert (found.state, words in found.found, "signatures" in found.found) == ("warning", True, False)
    assert "timedatectl set-ntp true" in found.advice


@pytest.mark.parametrize("headers", [{}, {"Date": ""}, {"Date": "yesterday"}])
def test_an_answer_without_a_date_says_nothing(headers: dict[str, str]) -> None:
    dates = Dates(ManualClock())
    dates.hear("the store", headers)
    found = judge(dates, "s3", taken=False)
    assert (found.facts, "not checked" in found.found) == ({"skew_seconds": None}, True)
    assert "nothing is signed" in judge(dates, "file", taken=False).found
