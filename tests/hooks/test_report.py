"""What the agent is told while a save runs: each phase, then a few words a second, and none that waits for it."""

from __future__ import annotations

from spotguard.hooks import protocol
from spotguard.hooks.alarm import Alarm
from spotguard.hooks.report import Report
from tests.fakes.clock import ManualClock


def test_progress_is_rare_and_droppable() -> None:
    """Each phase at once, how far it is four times a second at most; all of it may be dropped."""
    clock = ManualClock()
    heard: list[tuple[str, int]] = []

    def send(message: protocol.Message, *, droppable: bool = False) -> bool:
        assert isinstance(message, protocol.Progress)
        assert droppable
        heard.append((message.phase, message.done_bytes))
        return True

    report = Report(
        lambda key, data, seconds: None,
        "run",
        1,
        clock,
        send,
        lambda alarm: None,
        lambda alarm, committed: None,
    )
    alarm = Alarm(["n1"], 100.0, 90.0, "test", "terminate")
    for phase in ("begun", "gate", "first-byte"):
        report.progress(alarm, phase, 5, 0, 1000)
    for done in range(1000):
        report.progress(alarm, "writing", 5, done, 1000)
        clock.advance(0.001)
    report.progress(alarm, "written", 5, 1000, 1000)
    assert [phase for phase, _ in heard[:3]] == ["begun", "gate", "first-byte"]
    assert [phase for phase, _ in heard[3:-1]] == ["writing"] * 4
    assert heard[-1] == ("written", 1000)
    other = Alarm(["n2"], 100.0, 90.0, "test", "terminate")
    report.progress(other, "written", 5, 1000, 1000)
    assert len(heard) == 9
