"""`--deadline`: what a person may write, and what becomes of it while clocks are put right."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotguard.agent.config.parsers import DEADLINE_EXAMPLE, Deadline, deadline
from spotguard.agent.sources.deadline import DeadlineSource
from spotguard.providers.errors import UsageError
from spotguard.providers.notice import Notice, NoticeKind, Severity
from tests.docs.pages import ROOT
from tests.fakes.clock import ManualClock

#: The clock's own wall time: 2026-11-20T10:00:00Z.
WALL = 1795168800.0


@pytest.fixture
def _far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine three hours east of Greenwich."""
    monkeypatch.setenv("TZ", "XXX-3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def stands(source: DeadlineSource) -> Notice:
    sighting = source.poll()
    assert sighting.health.seeing
    (notice,) = sighting.notices
    return notice


@pytest.mark.usefixtures("_far_from_utc")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2026-11-20T11:00:00Z", Deadline(wall=WALL + 3600)),
        ("2026-11-20T11:00Z", Deadline(wall=WALL + 3600)),
        ("2026-11-20 12:00+01:00", Deadline(wall=WALL + 3600)),
        ("2026-11-20T14:00", Deadline(wall=WALL + 3600)),  # the machine's own zone
        ("2026-11-21", Deadline(wall=WALL + 11 * 3600)),
        (" 1795172400 ", Deadline(wall=WALL + 3600)),
        ("1795172400.5", Deadline(wall=WALL + 3600.5)),
        ("+3600", Deadline(after=3600)),
        ("+0.5", Deadline(after=0.5)),
        ("2h", Deadline(after=7200)),
        ("+2h", Deadline(after=7200)),
        ("1d2H30m5s", Deadline(after=86400 + 9000 + 5)),
        ("90min", Deadline(after=5400)),
        ("1.5h", Deadline(after=5400)),
    ],
)
def test_a_deadline_is_read_in_each_accepted_form(text: str, said: Deadline) -> None:
    assert deadline("--deadline", text) == said


@pytest.mark.parametrize(
    "text",
    ["", "soon", "2026-13-01", "25:00", "h", "+", "-3600", "nan", "inf", "2 hours", "1w", "0001-01-01"],
)
def test_text_that_is_no_time_is_named(text: str) -> None:
    """With what would be one. (A year that is past is a time, and refused when the clock is asked.)"""
    with pytest.raises(UsageError) as caught:
        DeadlineSource(deadline("SPOTGUARD_DEADLINE", text), ManualClock())
    assert str(caught.value).startswith(f"SPOTGUARD_DEADLINE {text!r}: expected a time")


@given(st.text(max_size=30))
def test_any_words_are_a_time_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        deadline("--deadline", text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2026-11-20T09:00Z", "expected a time to come: this one was 1 h ago"),
        ("3600", "for seconds from now pass +3600"),
        ("1790123100", "58 d 9 h ago; pass a later one"),
        ("1790123100.5", "pass a later one"),
        ("+1790123100", "within ten years from now on: Unix seconds are written without a +"),
        ("+0", "a time to come"),
        ("1795172400000", "in seconds, not milliseconds"),
        ("+99999999999", "within ten years"),
    ],
)
def test_a_time_that_cannot_be_meant_is_refused(text: str, words: str) -> None:
    """By name, at the start: a deadline that is past would end the run before it has begun."""
    with pytest.raises(UsageError) as caught:
        DeadlineSource(deadline("--deadline", text), ManualClock())
    assert str(caught.value).startswith(f"--deadline {text!r}: expected ")
    assert words in str(caught.value)


def test_the_example_of_all_messages_and_pages_is_one_that_can_be_copied() -> None:
    """Neither past nor too far off, for years."""
    DeadlineSource(deadline("--deadline", f"{DEADLINE_EXAMPLE}Z"), ManualClock())
    pages = [
        ROOT / "README.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("packaging/spotguard/*/**/*.py"),
        *ROOT.glob("agent/**/*.py"),
    ]
    shown = {
        (page.name, day)
        for page in pages
        for day in re.findall(r"\b(20[0-9]{2}-[0-9]{2}-[0-9]{2})[T ]1[78]:00(?!:?[0-9])", page.read_text())
    }
    assert {"own-notices.md", "bootstrap.md", "commands.md", "parsers.py"} <= {page for page, _ in shown}
    assert {day for _, day in shown} == {DEADLINE_EXAMPLE[:10]}


def test_it_stands_from_the_start_and_lies_far_off() -> None:
    """Also when it has passed: what becomes of it is the machine's."""
    clock = ManualClock()
    source = DeadlineSource(deadline("--deadline", "2026-11-20T11:00Z"), clock)
    notice = stands(source)
    assert (notice.kind, notice.severity, notice.source) == (
        NoticeKind.DEADLINE,
        Severity.LATER,
        "--deadline",
    )
    assert (notice.deadline, notice.seen_at) == (clock.monotonic() + 3600, clock.monotonic())
    assert datetime.fromisoformat(notice.detail) == datetime(2026, 11, 20, 11, tzinfo=UTC)
    clock.advance(4000)
    assert stands(source) == notice


def test_an_instant_follows_the_clock_on_the_wall() -> None:
    """Put right by an hour, or after a machine's sleep: the instant is the same, the way to it is not."""
    clock = ManualClock()
    source = DeadlineSource(deadline("--deadline", "2026-11-20T14:00Z"), clock)
    assert stands(source).deadline == clock.monotonic() + 4 * 3600
    clock.step_wall(3600)
    assert stands(source).deadline == clock.monotonic() + 3 * 3600
    clock.step_wall(-1800)
    assert stands(source).deadline == clock.monotonic() + 3.5 * 3600


def test_seconds_from_now_on_are_counted_by_no_wall_clock() -> None:
    clock = ManualClock()
    source = DeadlineSource(deadline("--deadline", "+3600"), clock)
    first = stands(source)
    clock.advance(100)
    clock.step_wall(-86400)
    assert stands(source) == first
