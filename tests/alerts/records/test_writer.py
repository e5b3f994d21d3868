"""The processes that work on a store for the helper: their output, their errors, and one that hangs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spotguard.alerts.records.writer import StoreJob, StoreProcesses
from spotguard.providers.clock import SystemClock
from tests.e2e.processes import eventually
from tests.fakes.clock import ManualClock

#: Prints what stdin has.
_ECHO = "json.tool"


def test_what_a_process_prints_is_handed_over_once_and_in_the_helper_s_thread() -> None:
    found: list[Any] = []
    processes = StoreProcesses(SystemClock())
    body = {"long": "x" * 50_000}
    processes.start(StoreJob(_ECHO, body, "not read", found.append))
    eventually(lambda: not processes.busy(), "it has ended")
    assert not processes.busy()
    assert found == [body]


def test_a_process_that_fails_hands_over_nothing(caplog: pytest.LogCaptureFixture) -> None:
    found: list[Any] = []
    processes = StoreProcesses(SystemClock())
    processes.start(StoreJob("spotguard.alerts.none", {}, "it is not read", found.append))
    eventually(lambda: not processes.busy(), "it has ended")
    assert (found, caplog.messages) == ([], ["it is not read"])


def test_a_process_that_is_out_of_time_is_killed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "hangs_for_good.py").write_text("import signal\nsignal.pause()\n")
    clock, found = ManualClock(), list[Any]()
    processes = StoreProcesses(clock)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
        processes.start(StoreJob("hangs_for_good", {}, "it is not read", found.append))
    (running,) = processes._running
    assert processes.busy()
    clock.advance(21)
    assert not processes.busy()
    assert (running.process.returncode, found) == (-9, [])
    assert caplog.messages == ["the store took more than 20 s: it is not read"]
