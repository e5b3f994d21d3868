"""The processes that write to a store for the helper: their input, their errors, and one that hangs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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


#: A job that writes what it is given into a file.
WRITES = "import json, sys\nopen({path!r}, 'a').write(json.load(sys.stdin)['text'])\n"


def test_a_process_gets_its_body_and_has_no_way_into_the_helper_s_pipe(
    module: Callable[[str], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    processes = StoreProcesses(SystemClock())
    text = "print('a library wrote this')\n" + WRITES.format(path=str(tmp_path / "said"))
    processes.start(StoreJob(module(text), {"text": "x" * 50_000}, "not written"))
    eventually(lambda: not processes.busy(), "it has ended")
    assert (tmp_path / "said").read_text() == "x" * 50_000
    assert capfd.readouterr().out == ""


def test_a_process_that_does_not_read_its_body_holds_nobody_up(module: Callable[[str], str]) -> None:
    """A pipe holds 64 KiB."""
    processes = StoreProcesses(SystemClock())
    processes.start(StoreJob(module("import signal\nsignal.pause()\n"), {"text": "x" * 1_000_000}, "no"))
    assert processes.busy()
    processes.close()
    assert not processes.busy()


def test_a_process_that_cannot_be_started_is_started_later(
    module: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """The body may be the only record of a failure."""
    clock = ManualClock()
    processes = StoreProcesses(clock)
    job = StoreJob(module(WRITES.format(path=str(tmp_path / "said"))), {"text": "once."}, "it is not written")
    with monkeypatch.context() as patch:
        patch.setattr("sys.executable", str(Path("/nowhere/python")))
        processes.start(job)
        assert processes.busy()
    eventually(lambda: not processes.busy(), "it has ended")
    assert ((tmp_path / "said").read_text(), caplog.messages) == ("once.", [])
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
    assert (tmp_path / "said").read_text() == "once."


def test_a_process_that_fails_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    processes = StoreProcesses(SystemClock())
    processes.start(StoreJob("spotguard.alerts.none", {}, "it is not written"))
    eventually(lambda: not processes.busy(), "it has ended")
    assert caplog.messages == ["it is not written"]


def test_a_process_that_is_out_of_time_is_killed(
    module: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    processes = StoreProcesses(clock)
    processes.start(StoreJob(module("import signal\nsignal.pause()\n"), {}, "it is not written"))
    (running,) = processes._running
    for _ in range(4):
        assert processes.busy()
        clock.advance(5)
    assert not processes.busy()
    assert running.child.returncode == -9
    assert caplog.messages == ["the store took more than 20 s: it is not written"]


def test_time_in_which_the_helper_was_stopped_itself_does_not_count(
    module: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """Such as on a machine that is suspended: the store had no time either."""
    clock, writes = ManualClock(), module(WRITES.format(path=str(tmp_path / "said")))
    processes = StoreProcesses(clock)
    processes.start(StoreJob(writes, {"text": "a"}, "it is not written"))
    with monkeypatch.context() as patch:
        patch.setattr("sys.executable", str(Path("/nowhere/python")))
        processes.start(StoreJob(writes, {"text": "b"}, "it is not written"))
        clock.advance(600)
        assert processes.busy()
    eventually(lambda: not processes.busy(), "both have ended")
    assert (sorted((tmp_path / "said").read_text()), caplog.messages) == (["a", "b"], [])
