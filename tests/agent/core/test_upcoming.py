"""What stands further off than the notice in hand, as values."""

from __future__ import annotations

import math

import pytest

from spotguard.agent.core.notices import COOL_DOWN, NEAR, WINDOW, Upcoming
from spotguard.providers.notice import Notice, NoticeKind, Severity
from spotguard.providers.text import span

NOW = 1000.0


def later(id: str, left: float, now: float = NOW) -> Notice:
    return Notice(id, NoticeKind.REBOOT, f"azure {id}", now + left, now, Severity.LATER, "", 900.0)


def test_a_due_notice_comes_out_once_and_terminal() -> None:
    """With the window that is left, seen when it became one."""
    horizon = Upcoming(None)
    horizon.expect(later("a", 1000), NOW)
    horizon.expect(later("b", 500), NOW)
    assert sorted(horizon.wakes) == [
        NOW + left for left in (500 - NEAR, 500 - WINDOW, 1000 - NEAR, 1000 - WINDOW)
    ]
    assert horizon.due(NOW + 500 - WINDOW - 0.001) == []
    (due,) = horizon.due(NOW + 500 - WINDOW)
    assert (due.id, due.severity, due.window) == ("b", Severity.TERMINAL, WINDOW)
    assert (due.deadline, due.seen_at) == (NOW + 500, NOW + 500 - WINDOW)
    assert horizon.due(NOW + 500) == []


def test_a_checkpoint_is_wished_for_once() -> None:
    """Whether somebody could be asked or not: who comes later is told why by `near`."""
    horizon = Upcoming(None)
    horizon.expect(later("a", NEAR), NOW)
    assert horizon.near(NOW) == ""
    assert horizon.wish(NOW, anybody=False) is None
    assert horizon.near(NOW) == "reboot from azure a in 5 min"
    assert horizon.wish(NOW, anybody=True) is None


def test_a_deadline_is_stronger_than_a_warning() -> None:
    """Both at once are one checkpoint, of a machine that goes; the warning is answered by it."""
    horizon = Upcoming(None)
    warning = Notice("w", NoticeKind.FREEZE, "azure", NOW, NOW, Severity.ADVISORY)
    horizon.advise(warning, NOW)
    horizon.expect(later("a", 200), NOW)
    wish = horizon.wish(NOW, anybody=True)
    assert wish is not None
    assert wish.going
    assert horizon.wish(NOW + 1, anybody=True) is None


def test_a_warning_just_before_is_no_substitute_for_a_deadlines_checkpoint() -> None:
    """With `--every off` nobody makes one for a warning."""
    horizon = Upcoming(None)
    horizon.expect(later("a", NEAR + 30), NOW)
    horizon.advise(Notice("w", NoticeKind.FREEZE, "azure", NOW, NOW, Severity.ADVISORY), NOW)
    wishes = [horizon.wish(NOW + at, anybody=True) for at in (0, 30)]
    assert [wish and wish.going for wish in wishes] == [False, True]


def test_a_warning_that_went_before_anybody_was_asked_asks_nobody() -> None:
    horizon = Upcoming(None)
    horizon.advise(Notice("w", NoticeKind.FREEZE, "azure", NOW, NOW, Severity.ADVISORY), NOW)
    assert horizon.gone("w") is not None
    assert horizon.wish(NOW, anybody=True) is None
    assert horizon.gone("w") is None


def test_a_source_that_numbers_its_events_anew_fills_no_memory() -> None:
    """The nearest deadlines are kept, and the newest warnings."""
    horizon = Upcoming(None)
    for n in range(500):
        horizon.expect(later(f"a{n}", 10_000 + 10 * n), NOW)
        horizon.advise(
            Notice(f"w{n}", NoticeKind.FREEZE, "azure", NOW, NOW, Severity.ADVISORY), NOW + n * COOL_DOWN
        )
    shown = horizon.status(NOW)
    assert len(shown) == 128
    assert shown[0]["id"] == "a0"
    assert shown[-1]["id"] == "w499"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-3, "0.0 s"),
        (8.04, "8.0 s"),
        (60, "1 min"),
        (300.5, "5 min"),
        (320, "5 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (86400 * 3 + 4 * 3600, "3 d 4 h"),
        (86400 * 90.0, "90 d"),
    ],
)
def test_a_time_ahead_as_a_person_says_it(seconds: float, said: str) -> None:
    assert span(seconds) == said


def test_window_zero_is_a_window() -> None:
    """The notice comes at the deadline itself."""
    horizon = Upcoming(0.0)
    horizon.expect(later("a", 100), NOW)
    assert max(horizon.wakes) == NOW + 100
    assert horizon.due(math.nextafter(NOW + 100, 0)) == []
    assert len(horizon.due(NOW + 100)) == 1


def test_memory_that_ends_is_told_beside_any_other_warning_and_asks_for_certain() -> None:
    horizon = Upcoming(None)
    for number, kind in enumerate((NoticeKind.REBALANCE, NoticeKind.MEMORY, NoticeKind.MEMORY)):
        now = NOW + number
        assert horizon.advise(Notice(f"w{number}", kind, "x", now, now, Severity.ADVISORY), now)
        wish = horizon.wish(now, anybody=True)
        assert wish is not None
        assert wish.going is (kind is NoticeKind.MEMORY)
