"""The helper as its agent holds it: no write blocks, no line is torn, and its end is seen, told once, and harmless."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotguard.agent.events import HealthChanged, HelperEnded, HelperReported, SourceGone
from spotguard.agent.process.helpers.alert_helper import AlertHelper
from spotguard.providers.health import SEEING, STARTING, blind
from tests.fakes.clock import ManualClock
from tests.fakes.serving import Events

#: It repeats what it is told.
ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"
#: It reads the first line, reports it, and reads no more until it gets a signal.
DEAF = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
line = sys.stdin.buffer.raw.read(65536)
print('{"deaf": true}', flush=True)
signal.sigwait({signal.SIGUSR1})
for line in sys.stdin: print(line, end='', flush=True)
"""


class Held:
    """A helper, its events, and a clock that the test moves."""

    def __init__(self) -> None:
        self.events, self.clock = Events(), ManualClock()
        self.helper = self.of(ECHO)

    def of(self, program: str) -> AlertHelper:
        self.helper = AlertHelper(
            {"run_id": "gpt"},
            self.events.queue.put,
            self.clock,
            (sys.executable, "-c", program),
        )
        return self.helper

    def heard(self) -> dict[str, Any]:
        """The next thing that the helper reports."""
        event = self.events.next(HelperReported)
        self.helper.reported(event)
        return event.body

    def after(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.helper.beat(self.clock.monotonic())

    def dies(self, signum: int = signal.SIGKILL) -> None:
        os.kill(self.helper.state.pid, signum)
        self.helper.ended(self.events.next(HelperEnded))


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held()
    yield held
    held.helper.close()
    if held.helper.state.pid:
        held.events.next(HelperEnded)


def test_it_gets_its_begin_and_then_what_happens(held: Held) -> None:
    held.helper.start()
    assert held.heard() == {"type": "begin", "run_id": "gpt"}
    held.helper.tell("stall", {"rank": 1})
    assert held.heard() == {"type": "event", "kind": "stall", "facts": {"rank": 1}}
    assert held.helper.next_beat is None


def test_a_report_that_cannot_be_read_costs_that_report(held: Held) -> None:
    """Such as one that is nested too deeply for Python's parser."""
    held.of("print('[' * 100_000); print('no JSON'); print('{\"a\": 1}', flush=True); input()").start()
    assert held.heard() == {"a": 1}


def test_a_helper_whose_reports_nobody_can_take_is_started_again(
    held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread that reads would end without a word, and the agent would take the helper for alive."""
    post = held.helper._post

    def fails(event: Any) -> None:
        if isinstance(event, HelperReported):
            raise RuntimeError("a bug")
        post(event)

    held.helper._post = fails
    held.helper.start()
    held.helper.ended(held.events.next(HelperEnded))
    assert "an error of the agent with the reports" in caplog.text
    assert "is started again in 5 s" in caplog.text


def test_it_is_told_of_each_source_that_is_blind_and_sees_again(held: Held) -> None:
    """A source that has not answered yet is neither. The next helper is told of those that are blind."""
    held.helper.start()
    held.heard()
    healths = (STARTING, blind("timeout", "no answer in 2 s", "raise the hop limit"), SEEING)
    for health in healths:
        held.helper.take(HealthChanged("aws", health, 0.0))
    facts = [held.heard()["facts"] for _ in healths]
    assert [each["over"] for each in facts] == [True, False, True]
    assert facts[1]["text"] == "blind (timeout); no answer in 2 s; raise the hop limit"
    held.helper.take(HealthChanged("aws", healths[1], 0.0))
    held.helper.take(HealthChanged("file", healths[1], 0.0))
    held.helper.take(SourceGone("file"))
    for _ in range(3):
        held.heard()
    held.dies()
    held.after(5.1)
    assert held.heard()["type"] == "begin"
    told = held.heard()["facts"]
    assert (told["source"], told["over"]) == ("aws", False)


def test_the_next_helper_is_told_what_still_holds(held: Held) -> None:
    """A stall until training moves; failing checkpoints of each rank until one is committed. A failure is told once."""
    held.helper.start()
    held.heard()
    failing: dict[str, Any] = {"run_id": "gpt", "text": "403"}
    events: list[tuple[str, dict[str, Any]]] = [
        ("stall", {"run_id": "gpt"}),
        ("stall", {"run_id": "other"}),
        ("moving", {"run_id": "gpt"}),
        ("checkpoints-failing", {**failing, "rank": 0, "over": False}),
        ("checkpoints-failing", {**failing, "rank": 1, "over": False}),
        ("checkpoints-failing", {**failing, "rank": 0, "over": True}),
        ("training", {"run_id": "gpt", "rank": 0}),
        ("failure", {"run_id": "gpt"}),
    ]
    for kind, facts in events:
        held.helper.tell(kind, facts)
        assert held.heard()["kind"] == kind
    held.dies()
    held.after(5.1)
    assert held.heard()["type"] == "begin"
    told = [held.heard() for _ in range(2)]
    assert sorted((each["kind"], each["facts"]["run_id"], each["facts"].get("rank")) for each in told) == [
        ("checkpoints-failing", "gpt", 1),
        ("stall", "other", None),
    ]
    held.helper.tell("launch", {})
    assert held.heard()["kind"] == "launch", "and nothing before it"


def test_one_that_does_not_read_blocks_nothing_and_what_it_misses_is_counted(
    held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    """Lines are whole when it reads again, and the newest are those that are dropped."""
    helper = held.of(DEAF)
    helper.start()
    assert held.heard() == {"deaf": True}
    for number in range(1000):
        helper.tell("stall", {"number": number, "text": "x" * 1000})
    dropped = helper.state.dropped
    assert dropped > 500
    assert caplog.messages == ["the helper of alerts does not read: its messages are dropped [SG113]"]
    assert helper.next_beat == held.clock.monotonic() + 1.0
    os.kill(helper.state.pid, signal.SIGUSR1)
    numbers: list[int] = []
    while len(numbers) < 1000 - dropped:
        numbers.append(held.heard()["facts"]["number"])
        held.after(0.0)
    assert numbers == list(range(1000 - dropped))
    helper.tell("moving", {})
    assert held.heard()["kind"] == "moving"


def test_its_death_is_told_once_and_it_is_started_again_with_what_it_missed(
    held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    held.helper.start()
    held.heard()
    held.dies()
    assert (held.helper.state.pid, held.helper.state.returncode) == (0, -9)
    assert caplog.messages == [
        "the helper of alerts has ended (SIGKILL): it is started again in 5 s; training and notices do not depend on it [SG113]"
    ]
    held.helper.tell("failure", {"class": "data"})
    assert held.helper.next_beat == held.clock.monotonic() + 5.0
    held.after(4.9)
    assert not held.helper.busy
    held.after(0.2)
    assert held.heard()["type"] == "begin"
    assert held.heard()["kind"] == "failure"
    assert held.helper.state.starts == 2
    assert len(caplog.messages) == 1


def test_a_signal_without_a_name_ends_one_helper_and_not_all(
    held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    held.helper.start()
    held.heard()
    held.dies(signal.SIGRTMIN + 6)
    assert "has ended (a signal): it is started again in 5 s" in caplog.text


def test_one_that_ends_over_and_over_is_left_ended(held: Held, caplog: pytest.LogCaptureFixture) -> None:
    helper = held.of("raise SystemExit(3)")
    helper.start()
    helper.ended(held.events.next(HelperEnded))
    for seconds in (5.0, 30.0, 300.0):
        held.after(seconds)
        helper.ended(held.events.next(HelperEnded))
    assert [message.partition(" in ")[0].partition("; ")[0] for message in caplog.messages] == [
        *["the helper of alerts has ended (exit code 3): it is started again"] * 3,
        "the helper of alerts has ended (exit code 3): it is not started again",
    ]
    assert helper.next_beat is None
    helper.tell("failure", {})
    held.after(1e6)
    assert (helper.state.starts, helper.busy) == (4, False)


def test_a_death_after_a_sound_hour_counts_anew(held: Held) -> None:
    held.helper.start()
    for _ in range(6):
        held.clock.advance(3700.0)
        held.dies()
        held.after(5.1)
    assert held.helper.busy


def test_a_torn_line_is_not_continued_by_the_next_helper(held: Held) -> None:
    helper = held.of(DEAF)
    helper.start()
    held.heard()
    for number in range(100):
        helper.tell("stall", {"number": number, "text": "x" * 1000})
    held.dies()
    held.helper._command = (sys.executable, "-c", ECHO)
    held.after(5.1)
    assert held.heard()["type"] == "begin"
    assert set(held.heard()) == {"type", "kind", "facts"}


def test_one_that_cannot_be_started_is_told_and_harms_nothing(
    held: Held, caplog: pytest.LogCaptureFixture, folder: Path
) -> None:
    held.helper._command = (str(folder / "none"),)
    held.helper.start()
    assert "cannot be started: No such file or directory: it is started again in 5 s" in caplog.text
    held.helper.tell("stall", {})
    assert not held.helper.busy


def test_one_that_no_thread_can_read_is_ended_and_started_later(
    held: Held, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod's limit of processes counts threads, too."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        held.helper.start()
    assert "cannot be started: can't start new thread: it is started again in 5 s" in caplog.text
    assert not held.helper.busy
    held.after(5.1)
    assert held.heard()["type"] == "begin"


def test_at_the_end_it_reads_everything_and_its_end_is_no_failure(
    held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spotguard")
    held.helper.start()
    held.heard()
    held.helper.tell("failure", {})
    held.helper.finish()
    held.helper.finish()
    assert [held.heard()["type"] for _ in range(2)] == ["event", "end"]
    event = held.events.next(HelperEnded)
    assert event.returncode == 0
    held.helper.ended(event)
    assert not held.helper.busy
    assert caplog.messages == []


def test_at_its_end_it_says_for_how_long_it_is_busy_and_its_report_stays(held: Held) -> None:
    held.helper.reported(HelperReported({"firing": [{"alert": "stall"}], "hanging": ["GPUs"]}))
    assert held.helper.busy_until == 0.0
    held.helper.reported(HelperReported({"busy": 60.0}))
    assert held.helper.busy_until == held.clock.monotonic() + 62.0
    assert held.helper.state.status()["hanging"] == ["GPUs"]


def test_one_that_ends_with_its_stdin_is_not_killed(held: Held) -> None:
    held.helper.start()
    held.heard()
    held.helper.close()
    assert held.events.next(HelperEnded).returncode == 0
    held.helper.state = held.helper._with(pid=0)


def test_one_that_does_not_end_is_killed(held: Held) -> None:
    helper = held.of(DEAF)
    helper.start()
    held.heard()
    helper.finish()
    assert helper.busy
    pid = helper.state.pid
    helper.close()
    event = held.events.next(HelperEnded)
    assert (event.pid, event.returncode) == (pid, -9)
    helper.state = helper._with(pid=0)


def test_output_that_is_no_json_is_ignored(held: Held) -> None:
    helper = held.of("print('hello'); print('[1]'); print('{\"firing\": []}')")
    helper.start()
    assert held.heard() == {"firing": []}
    helper.ended(held.events.next(HelperEnded))


def test_its_state_is_plain_json(held: Held) -> None:
    held.helper.start()
    held.helper.reported(HelperReported({"firing": [{"alert": "stall"}]}))
    shown = held.helper.state.status()
    assert json.loads(json.dumps(shown)) == {
        "pid": held.helper.state.pid,
        "returncode": None,
        "starts": 1,
        "dropped": 0,
        "firing": [{"alert": "stall"}],
        "hanging": [],
    }
