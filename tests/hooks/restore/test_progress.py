"""How far a long reading is: seen where somebody looks, and never in its way."""

from __future__ import annotations

import io
import logging

import pytest

from spotguard.hooks.restore.progress import ReadProgress, progress_text
from tests.fakes.clock import ManualClock

MIB = 2**20


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Gone(Terminal):
    """A terminal whose window was closed."""

    def write(self, text: str) -> int:
        raise OSError("gone")


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records]


def test_a_short_read_shows_no_progress(caplog: pytest.LogCaptureFixture) -> None:
    """Neither on a terminal nor in the log."""
    caplog.set_level(logging.INFO)
    for stream in (Terminal(), io.StringIO()):
        clock = ManualClock()
        with ReadProgress("restoring step 5", clock, stream) as meter:
            for done in range(10):
                meter.show(done, 10)
                clock.advance(0.09)
        assert stream.getvalue() == ""
    assert lines(caplog) == []


def test_a_log_has_a_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """Bytes, rate, what is left; the last word is another's."""
    caplog.set_level(logging.INFO)
    clock, stream = ManualClock(), io.StringIO()
    with ReadProgress("restoring step 5", clock, stream) as meter:
        for second in range(1, 27):
            clock.advance(1.0)
            meter.show(second * 100 * MIB, 26 * 100 * MIB)
    assert lines(caplog) == [
        "restoring step 5: 500 of 2600 MiB, 105 MB/s, 21 s left",
        "restoring step 5: 1500 of 2600 MiB, 105 MB/s, 11 s left",
        "restoring step 5: 2500 of 2600 MiB, 105 MB/s, 1 s left",
    ]
    assert stream.getvalue() == ""


def test_a_terminal_has_a_bar_that_is_gone_in_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """And no line in the log beside it."""
    caplog.set_level(logging.INFO)
    clock, stream = ManualClock(), Terminal()
    with ReadProgress("verifying step 5", clock, stream) as meter:
        for second in range(1, 27):
            clock.advance(1.0)
            meter.show(second * 100 * MIB, 26 * 100 * MIB)
        shown = stream.getvalue()
    assert "verifying step 5" in shown
    assert "1.2/2.5 GiB" in shown or "1.3/2.5 GiB" in shown
    assert "MB/s" in shown
    assert stream.getvalue().endswith("\x1b[2K")
    assert lines(caplog) == []


def test_an_error_takes_the_bar_away() -> None:
    """What is said next stands on a line of its own; the cursor is back."""
    clock, stream = ManualClock(), Terminal()
    meter = ReadProgress("restoring step 5", clock, stream)
    clock.advance(2.0)
    meter.show(1, 2)
    with pytest.raises(KeyboardInterrupt), meter:
        raise KeyboardInterrupt
    assert "\x1b[?25h" in stream.getvalue()


def test_a_terminal_that_goes_away_ends_nothing() -> None:
    clock = ManualClock()
    with ReadProgress("restoring step 5", clock, Gone()) as meter:
        for _ in range(3):
            clock.advance(2.0)
            meter.show(1, 2)


def test_a_closed_stderr_is_no_terminal() -> None:
    stream = Terminal()
    stream.close()
    with ReadProgress("restoring step 5", ManualClock(), stream) as meter:
        meter.show(1, 2)


def test_before_the_first_byte_there_is_no_rate() -> None:
    assert progress_text(0, 5 * MIB, 6.0) == "0 of 5 MiB"
