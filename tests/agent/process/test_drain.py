"""The wait at the agent's end: as long as the helper has something to do, and no longer."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from spotguard.agent.events import HelperReported, Signalled
from spotguard.agent.process import drain as module
from spotguard.agent.process.drain import drain
from spotguard.agent.process.helpers.alert_helper import AlertHelper
from spotguard.providers.clock import SystemClock
from tests.fakes.serving import Events

#: It does not end with its stdin.
STAYS = "import signal; signal.pause()"
#: It reports that it is busy, and ends with its stdin.
BUSY = """import sys; print('{"busy": 30}', flush=True); sys.stdin.read()"""

Started = Callable[[str], AlertHelper]


@pytest.fixture
def started(events: Events) -> Iterator[Started]:
    helpers = list[AlertHelper]()

    def start(program: str) -> AlertHelper:
        command = (sys.executable, "-c", program)
        helpers.append(AlertHelper({}, events.queue.put, SystemClock(), command))
        helpers[-1].start()
        return helpers[-1]

    yield start
    for helper in helpers:
        helper.close()


def test_a_helper_that_does_not_end_holds_no_exit_up_for_long(
    started: Started, events: Events, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left then, for the agent to kill."""
    monkeypatch.setattr(module, "_ALERTS", 0.1)
    helper = started(STAYS)
    drain(events.queue, SystemClock(), failed=False, until=0.0, alerts=helper)
    assert helper.busy
    assert caplog.messages == [
        "the helper of alerts has not ended in 0 s: its last messages may be lost [SG113]"
    ]


def test_a_helper_that_says_that_it_is_busy_gets_its_time(
    started: Started, events: Events, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_ALERTS", 0.0)
    helper = started(BUSY)
    helper.take(events.next(HelperReported))
    drain(events.queue, SystemClock(), failed=False, until=0.0, alerts=helper)
    assert not helper.busy
    assert caplog.messages == []


def test_a_sigterm_ends_the_wait(started: Started, events: Events, caplog: pytest.LogCaptureFixture) -> None:
    helper = started(STAYS)
    events.queue.put(Signalled(signal.SIGTERM))
    drain(events.queue, SystemClock(), failed=True, until=0.0, alerts=helper)
    assert helper.busy
    assert caplog.messages == []
