"""Scripts of what happens: read whole, or refused with file, line and what was expected."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotguard.providers.errors import UsageError
from spotguard.providers.simulator.aws.cli import VERBS
from spotguard.providers.simulator.aws.service import AwsSimulator
from spotguard.providers.simulator.scenario import Step, parse_script, read_script, seconds
from tests.cases import cases
from tests.fakes.clock import ManualClock
from tests.fixtures_simulator import SimulateAws


def steps(text: str) -> list[Step[AwsSimulator]]:
    return parse_script(text, "notices.txt", VERBS)


def test_each_line_does_what_it_says_at_its_time(simulate_aws: SimulateAws, clock: ManualClock) -> None:
    """Comments, empty lines and the order of lines change nothing."""
    told: list[str] = []
    instance = simulate_aws(clock, tell=told.append)
    found = steps(
        """
        # a bad day
        10s preempt window=90 action=stop skew=-30   # with a clock behind
        2s   rebalance
        500ms fault 503 for=5s

        1m fault reset count=3 path=spot/
        2 expire-tokens
        3 termination-time stale
        4 maintenance system-reboot in=10m skew=2
        5 maintenance-over canceled
        6 autoscaling Warmed:Stopped
        0.1h clear
        """
    )
    assert [step.at for step in found] == [10, 2, 0.5, 60, 2, 3, 4, 5, 6, 360]
    for step in found:
        step.do(instance)
    assert told == [
        "notice: stop at 2026-11-20T10:01:00Z, 90 s from now",
        "rebalance recommendation at 2026-11-20T10:00:00Z",
        "fault: 503 for 5 s",
        "fault: reset at spot/",
        "all tokens forgotten",
        "termination-time: stale",
        "scheduled: system-reboot in 600 s",
        "scheduled events: canceled",
        "autoscaling: Warmed:Stopped",
        "all clear",
    ]


@cases(
    "line, message",
    [
        ("soon preempt", "'soon' is not a time: expected seconds, as in 10, 10s, 1.5m or 500ms"),
        ("-3s preempt", "'-3s' is before the start: expected a time from 0 on"),
        ("3s", "nothing happens at 3s: expected one of preempt, rebalance, termination-time,"),
        (
            "3s premept",
            "unknown verb 'premept': expected one of preempt, rebalance, termination-time,",
        ),
        ("3s preempt window", "preempt 'window': expected window=, action=, skew="),
        ("3s preempt windw=3", "preempt 'windw=3': expected window=, action=, skew="),
        ("3s preempt window=", "'' is not a time"),
        ("3s preempt action=reboot", "'reboot': expected one of terminate, stop, hibernate"),
        ("3s rebalance now", "rebalance 'now': expected nothing more"),
        (
            "3s termination-time soon",
            "termination-time 'soon': expected one of absent, garbage, stale, valid",
        ),
        ("3s maintenance in=3", "maintenance 'in=3': expected one of instance-stop,"),
        ("3s autoscaling", "autoscaling nothing: expected one of Detached,"),
        ("3s fault", "fault nothing: expected one of 401, 403"),
        ("3s fault 404", "fault '404': expected one of 401, 403"),
        ("3s fault 503 count=0", "'0' is not a number of times: expected 1, 2, 3"),
    ],
)
def test_a_line_that_cannot_be_understood_is_named(line: str, message: str) -> None:
    """By file and number; what was expected is said."""
    with pytest.raises(UsageError) as error:
        steps(f"1s rebalance\n\n{line}\n")
    assert str(error.value).startswith(f"notices.txt:3: {message}")
    assert "\n" not in str(error.value)


@given(st.text())
def test_no_text_raises_anything_else(text: str) -> None:
    """A script is understood or refused."""
    with suppress(UsageError):
        steps(text)


@pytest.mark.parametrize(
    ("text", "value"), [("10", 10), ("1.5s", 1.5), ("2m", 120), ("1h", 3600), ("250ms", 0.25), ("-3s", -3)]
)
def test_times_have_units(text: str, value: float) -> None:
    """Seconds where none is said."""
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "s", "1e3", "nan", "inf", "1 s", "1w", "٣", "1_0"])
def test_text_that_is_no_time_is_refused(text: str) -> None:
    """Also what Python would take for a number."""
    with pytest.raises(ValueError, match="is not a time"):
        seconds(text)


def test_a_script_is_read_from_its_file(tmp_path: Path) -> None:
    """As text."""
    (tmp_path / "script").write_text("1s rebalance\n")
    assert [step.at for step in read_script(str(tmp_path / "script"), VERBS)] == [1]


def test_a_script_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Absent, or no text."""
    with pytest.raises(UsageError, match=r"--script .*/none: No such file or directory"):
        read_script(str(tmp_path / "none"), VERBS)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"--script .*/binary: not text"):
        read_script(str(tmp_path / "binary"), VERBS)
