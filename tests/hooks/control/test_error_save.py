"""The error that ends training: what is saved then, and what is written down."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from spotguard.hooks.control.ending import error_save, sigterm
from spotguard.hooks.guard import Guard
from spotguard.hooks.ipc.notice import PreemptionNotice
from spotguard.hooks.ipc.protocol import FAILURE, STALL, Preempt
from tests.fakes.training import different, finished, guarded, small, step_on, trajectory

pytestmark = pytest.mark.torch


def ends_with(error: BaseException) -> None:
    """Python calls the hook with an error that nothing has caught."""
    sys.excepthook(type(error), error, error.__traceback__)


def saved(folder: Path) -> list[str]:
    return sorted(path.parent.name[:9] for path in folder.glob("run/checkpoints/*/COMMIT.json"))


def record(folder: Path) -> dict[str, Any] | None:
    found = [*folder.glob("run/failures/*.json")]
    assert len(found) < 2
    return json.loads(found[0].read_text()) if found else None


def trained(guard: Guard, job: Any, steps: int = 3) -> None:
    guard.restore()
    step_on(guard, job, *range(steps))


def test_the_step_that_stands_is_committed_bit_for_bit(tmp_path: Path) -> None:
    expected = trajectory(small, 5)
    job = small()
    with guarded(tmp_path, job.values) as guard:
        trained(guard, job)
        ends_with(ValueError("bad sample"))
    assert saved(tmp_path) == ["000000003"]
    kept = record(tmp_path)
    assert kept is not None
    assert (kept["kind"], kept["message"], kept["step"], kept["newest_checkpoint"]) == (
        "program",
        "bad sample",
        3,
        3,
    )
    assert different(finished(tmp_path, small, 5)[1], expected[5]) == []


@pytest.mark.parametrize("shown", [False, True])
def test_an_error_logs_nothing_that_an_agent_shows_at_this_terminal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, shown: bool
) -> None:
    """Its line has the failure with its advice. A commit stays in the script's own log: the agent may be at another terminal."""
    caplog.set_level("INFO", logger="spotguard")
    job = small()
    with guarded(tmp_path, job.values) as guard:
        trained(guard, job)
        guard._parts.report.shown = lambda: shown
        ends_with(ValueError("bad"))
    assert caplog.text.count("what to do:") == (not shown)
    assert caplog.text.count("step 3 is committed: the next start resumes there") == 1


def test_the_hook_that_was_there_is_called_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    monkeypatch.setattr(sys, "excepthook", lambda *_: seen.append(saved(tmp_path)))
    before = sys.excepthook
    job = small()
    with guarded(tmp_path, job.values) as guard:
        trained(guard, job)
        ends_with(ValueError("bad"))
    assert seen == [[]]
    assert saved(tmp_path) == ["000000003"]
    assert sys.excepthook is before


def test_a_guard_that_is_closed_while_the_error_passes_saves(tmp_path: Path) -> None:
    job = small()

    def run() -> None:
        with guarded(tmp_path, job.values) as guard:
            trained(guard, job)
            raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        run()
    assert saved(tmp_path) == ["000000003"]


def test_an_error_whose_hook_was_replaced_saves_at_the_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small()
    with guarded(tmp_path, job.values) as guard:
        trained(guard, job)
        monkeypatch.setattr(sys, "last_value", ValueError("bad"), raising=False)  # as Python leaves it
    assert saved(tmp_path) == ["000000003"]


def test_an_earlier_error_at_a_prompt_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = small()
    with guarded(tmp_path, job.values) as guard:
        trained(guard, job)
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
        monkeypatch.setattr(sys, "last_value", ValueError("bad"), raising=False)
    assert (saved(tmp_path), record(tmp_path)) == ([], None)


def test_a_step_that_is_committed_already_is_not_saved_again(tmp_path: Path) -> None:
    job = small()
    with guarded(tmp_path, job.values) as guard:
        trained(guard, job)
        guard.save()
        (folder,) = (tmp_path / "run" / "checkpoints").iterdir()
        ends_with(ValueError("bad"))
    assert [*(tmp_path / "run" / "checkpoints").iterdir()] == [folder]
    assert record(tmp_path) is not None


def test_a_save_that_is_in_progress_is_waited_for(tmp_path: Path) -> None:
    """A process that ended during it would take its part with it, and maybe the store in which the ranks meet."""
    job = small()
    with guarded(tmp_path, job.values) as guard:
        trained(guard, job)
        notice = Preempt("stall-3", 60.0, 0.0, STALL, "spotguard", drill=True)
        guard._saver.emergency(PreemptionNotice.received(notice, time.monotonic()))
        ends_with(ValueError("bad"))
        assert saved(tmp_path) == ["000000003"]


def test_the_wait_for_the_save_is_no_stall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lasts as long as the upload, and the agent must not save once more for it, or end it."""
    job, seen = small(), set[str]()
    with guarded(tmp_path, job.values) as guard:
        trained(guard, job)
        errors, progress = guard._parts.errors, guard._parts.progress
        monkeypatch.setattr(errors, "_unanswered", lambda: seen.add(progress.look().phase))
        ends_with(ValueError("bad"))
    assert seen == {"save"}


def test_a_save_that_waits_for_the_failed_step_is_given_up_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its notice has ten minutes, and that step does not end any more."""
    job = small()
    with guarded(tmp_path, job.values) as guard:
        trained(guard, job)
        half_a_step(guard, job)
        notice = Preempt("drill-3", 600.0, 0.0, "drill", "spotguard", drill=True)
        guard._saver.emergency(PreemptionNotice.received(notice, time.monotonic()))
        ends_with(ValueError("bad"))
    assert "nothing new is committed: training ended before its next guard.step()" in caplog.text
    assert "not saved, because the error came between optimizer.step() and guard.step()" in caplog.text
    assert saved(tmp_path) == []


def test_a_librarys_handler_that_raises_just_before_costs_no_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As Lightning's of SIGTERM, on a rank whose peer has died: once this handling has begun, ours has the signal alone."""
    job, alone, raised = small(), sigterm.alone, [RuntimeError("another rank is gone")]

    def late() -> AbstractContextManager[None]:
        if raised:
            raise raised.pop()
        return alone()

    with guarded(tmp_path, job.values) as guard:
        trained(guard, job)
        monkeypatch.setattr(sigterm, "alone", late)
        ends_with(ValueError("bad"))
    assert saved(tmp_path) == ["000000003"]
    assert "SG704" not in caplog.text


def test_a_second_error_is_not_handled(tmp_path: Path) -> None:
    job = small()
    with guarded(tmp_path, job.values) as guard:
        trained(guard, job)
        ends_with(ValueError("first"))
        ends_with(ValueError("second"))
    kept = record(tmp_path)
    assert kept is not None
    assert kept["message"] == "first"


def half_a_step(guard: Guard, job: Any) -> None:
    job.step(3)


def poisoned(guard: Guard, job: Any) -> None:
    """A step whose loss is not finite."""
    with torch.no_grad():
        for parameter in job.values["model"].parameters():
            parameter.grad = torch.full_like(parameter, float("nan"))
    job.values["optimizer"].step()
    guard.step()


def test_an_error_that_was_there_before_is_not_trainings(tmp_path: Path) -> None:
    job = small()
    try:
        raise ImportError("no flash attention")
    except ImportError:
        with guarded(tmp_path, job.values) as guard:
            trained(guard, job)
    assert (saved(tmp_path), record(tmp_path)) == ([], None)


def test_an_error_that_cannot_be_diagnosed_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(error_save, "diagnose", lambda error: 1 / 0)
    job = small()
    with guarded(tmp_path, job.values) as guard:
        trained(guard, job)
        ends_with(ValueError("bad"))
    assert saved(tmp_path) == []


def on_another_thread(guard: Guard, job: Any) -> None:
    other = threading.Thread(target=lambda: ends_with(ValueError("bad")))
    other.start()
    other.join()


@pytest.mark.parametrize(
    ("steps", "before", "error", "recorded"),
    [
        pytest.param(3, half_a_step, ValueError("bad"), True, id="half a step"),
        pytest.param(3, None, FloatingPointError("loss is nan"), True, id="wrong values"),
        pytest.param(3, poisoned, ValueError("bad"), True, id="weights that are not finite"),
        pytest.param(0, None, ValueError("bad"), True, id="nothing trained"),
        pytest.param(3, None, KeyboardInterrupt(), False, id="Ctrl-C"),
    ],
)
def test_an_error_before_anything_worth_saving_saves_nothing(
    steps: int, before: Any, error: BaseException, recorded: bool, tmp_path: Path
) -> None:
    job = small()
    with guarded(tmp_path, job.values) as guard:
        trained(guard, job, steps)
        if before is not None:
            before(guard, job)
        ends_with(error)
    assert saved(tmp_path) == []
    assert (record(tmp_path) is not None) is recorded


def test_an_error_of_another_thread_is_not_trainings(tmp_path: Path) -> None:
    job = small()
    with guarded(tmp_path, job.values) as guard:
        trained(guard, job)
        on_another_thread(guard, job)
    assert (saved(tmp_path), record(tmp_path)) == ([], None)


def test_ctrl_c_ends_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = small()
    with guarded(tmp_path, job.values) as guard:
        trained(guard, job)

        wait = guard._clock.wait

        def interrupted(event: threading.Event, timeout: float) -> bool:
            if threading.current_thread() is not threading.main_thread():
                return wait(event, timeout)
            monkeypatch.undo()  # once
            raise KeyboardInterrupt

        monkeypatch.setattr(guard._clock, "wait", interrupted)
        ends_with(ValueError("bad"))
        assert not guard._saver.has_notice
    assert record(tmp_path) is not None


def test_a_handler_that_raises_a_workers_death_does_not_disturb_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch's does, a moment after the main thread has met the end of the worker's pipe."""

    def child_dies(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGCHLD)

    def raises(*_: object) -> None:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

    before = signal.signal(signal.SIGCHLD, raises)
    try:
        monkeypatch.setattr(sys, "excepthook", child_dies)
        job = small()
        with guarded(tmp_path, job.values) as guard:
            trained(guard, job)
            ends_with(EOFError())
        assert signal.getsignal(signal.SIGCHLD) is raises
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert saved(tmp_path) == ["000000003"]


def test_a_workers_death_does_not_end_the_wait_for_a_save_at_the_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun ends the workers too while the process waits for the save for another rank's error."""

    def raises(*_: object) -> None:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated.")

    before = signal.signal(signal.SIGCHLD, raises)
    try:
        job = small()
        with guarded(tmp_path, job.values) as guard:
            trained(guard, job)
            close = guard._saver.close

            def closed(*args: Any) -> None:
                os.kill(os.getpid(), signal.SIGCHLD)
                close(*args)

            monkeypatch.setattr(guard._saver, "close", closed)
            notice = Preempt("failure-3", 60.0, 0.0, FAILURE, "RuntimeError")
            guard._saver.emergency(PreemptionNotice.received(notice, time.monotonic()))
        assert signal.getsignal(signal.SIGCHLD) is raises
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert saved(tmp_path) == ["000000003"]
