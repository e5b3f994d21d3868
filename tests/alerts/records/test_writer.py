"""The processes that work on a store for the helper: their output, their errors, and one that hangs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotguard.alerts.records.writer import StoreJob, StoreProcesses
from spotguard.providers.clock import SystemClock
from tests.e2e.processes import eventually
from tests.fakes.clock import ManualClock


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return the name of a module that has this text."""

    def write(text: str) -> str:
        name = f"job_{len([*tmp_path.glob('*.py')])}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    return write


def test_what_a_process_prints_is_handed_over_once_and_in_the_helper_s_thread(
    module: Callable[[str], str],
) -> None:
    found: list[Any] = []
    processes = StoreProcesses(SystemClock())
    body = {"long": "x" * 50_000}
    processes.start(StoreJob(module("print(input())\nprint(1)\n"), body, "not read", found.append))
    eventually(lambda: not processes.busy(), "it has ended")
    assert not processes.busy()
    assert found == [[body, 1]]


@pytest.mark.parametrize(
    "then", ["raise SystemExit(1)", "print('{\"cut', end='')", "print('a library wrote this')"]
)
def test_what_a_process_has_printed_counts_although_it_fails(
    then: str, module: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    """Another process that has ended beside it is not forgotten."""
    found: list[Any] = []
    processes = StoreProcesses(SystemClock())
    for text in (f"print(1)\n{then}\n", "print(2)\n"):
        processes.start(StoreJob(module(text), {}, "it is not read", found.extend))
    eventually(lambda: not processes.busy(), "both have ended")
    assert sorted(found) == [1, 2]
    (warning,) = caplog.messages
    assert "it is not read" in warning


def test_a_process_that_cannot_be_started_is_started_later(
    module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The body may be the only record of alerts that were sent."""
    found: list[Any] = []
    clock = ManualClock()
    processes = StoreProcesses(clock)
    job = StoreJob(module("print(1)\n"), {}, "it is not written", found.extend)
    with monkeypatch.context() as patch:
        patch.setattr("sys.executable", str(Path("/nowhere/python")))
        processes.start(job)
        assert processes.busy()
    eventually(lambda: not processes.busy(), "it has ended")
    assert (found, caplog.messages) == ([1], [])
    with monkeypatch.context() as patch:
        patch.setattr("sys.executable", str(Path("/nowhere/python")))
        processes.start(job)
        for _ in range(4):
            clock.advance(5)
            processes.busy()
        assert not processes.busy()
    (warning,) = caplog.messages
    assert "No such file or directory" in warning
    assert "it is not written" in warning
    assert found == [1]


def test_a_process_that_fails_hands_over_nothing(caplog: pytest.LogCaptureFixture) -> None:
    found: list[Any] = []
    processes = StoreProcesses(SystemClock())
    processes.start(StoreJob("spotguard.alerts.none", {}, "it is not read", found.append))
    eventually(lambda: not processes.busy(), "it has ended")
    assert (found, caplog.messages) == ([], ["it is not read"])


def test_a_process_that_is_out_of_time_is_killed_and_what_it_had_printed_counts(
    module: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    clock, found = ManualClock(), list[Any]()
    processes = StoreProcesses(clock)
    hangs = module("import signal\nprint(1, flush=True)\nsignal.pause()\n")
    processes.start(StoreJob(hangs, {}, "it is not read", found.append))
    (running,) = processes._running
    eventually(lambda: os.fstat(running.output.fileno()).st_size, "it has printed")
    for _ in range(4):
        assert processes.busy()
        clock.advance(5)
    assert not processes.busy()
    assert (running.process.returncode, found) == (-9, [[1]])
    assert caplog.messages == ["the store took more than 20 s: it is not read"]


def test_time_in_which_the_helper_was_stopped_itself_does_not_count(
    module: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as on a machine that is suspended: the store had no time either."""
    clock, found = ManualClock(), list[Any]()
    processes = StoreProcesses(clock)
    processes.start(StoreJob(module("print(input())\n"), {}, "it is not read", found.extend))
    with monkeypatch.context() as patch:
        patch.setattr("sys.executable", str(Path("/nowhere/python")))
        processes.start(StoreJob(module("print(2)\n"), {}, "it is not read", found.extend))
        clock.advance(600)
        assert processes.busy()
    eventually(lambda: not processes.busy(), "both have ended")
    assert (sorted(found, key=str), caplog.messages) == ([2, {}], [])
