"""The timeline says what happened, and is silent about what did not."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from spotguard.demo.compare import Losses
from spotguard.demo.timeline import read_outcome, timeline


def outcome(**more: object) -> dict[str, object]:
    return {
        "seen": datetime.fromtimestamp(1000.25, UTC).isoformat(),
        "delivered": 0.001,
        "first_byte": 0.03,
        **more,
    }


def test_phases_are_counted_from_when_the_notice_was_there() -> None:
    """The agent counts from seeing the notice; the timeline from the instant it could be seen."""
    found = timeline(
        outcome(committed=0.05, step=7), visible_wall=1000.0, window=20.0, ended=1.5, killed=False
    )
    assert [(round(mark.at, 3), mark.what.split()[0]) for mark in found.marks] == [
        (0.0, "the"),
        (0.25, "seen"),
        (0.251, "delivered"),
        (0.28, "first"),
        (0.3, "committed"),
        (1.5, "machine"),
    ]
    assert found.slack == 18.5


def test_a_machine_that_was_killed_has_no_slack_and_no_commit() -> None:
    """Without an outcome there is the notice and the end, and nothing in between."""
    found = timeline(read_outcome(Path("/nowhere")), visible_wall=1000.0, window=2.0, ended=2.0, killed=True)
    assert [mark.what for mark in found.marks] == [
        "the notice stands at the metadata endpoint",
        "switched off by the cloud",
    ]
    assert found.slack is None


def test_the_power_button_has_its_place_among_the_rest() -> None:
    """ACPI's SIGTERM comes when it comes: before the agent has read the notice, or in the middle of the save."""
    found = timeline(
        outcome(committed=0.05), visible_wall=1000.0, window=30.0, ended=1.5, killed=False, pressed=0.27
    )
    assert [mark.what.split()[0] for mark in found.marks] == [
        *("the", "seen", "delivered", "ACPI's", "first", "committed", "machine")
    ]


def test_a_line_that_is_still_being_written_is_read_later(tmp_path: Path) -> None:
    """Half a line is no record, and is not lost either."""
    losses = Losses(tmp_path / "losses.jsonl")
    losses.refresh()
    assert losses.started is None
    losses.path.write_text('{"event": "start", "step": 4}\n{"step": 5, "lo')
    losses.refresh()
    assert losses.step == 4
    assert losses.by_step == {}
    with losses.path.open("a") as file:
        file.write('ss": 2.5, "held_out": 3.0}\n')
    losses.refresh()
    assert (losses.step, losses.by_step, losses.held_out) == (5, {5: 2.5}, {5: 3.0})
