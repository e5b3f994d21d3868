"""A process beside the agent: its input, its end, and the limits of the machine that it meets."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotguard.agent.actions import Verify
from spotguard.agent.events import NoticeHookEnded, Verified
from spotguard.agent.process.child import Child, Ended
from spotguard.agent.process.helpers.verifier import Verifier
from spotguard.agent.process.notice_hook import NoticeHook
from spotguard.agent.telemetry.exclude_file import ExcludeFile
from spotguard.providers.clock import SystemClock
from spotguard.providers.notice import Notice, NoticeKind
from tests.fakes.serving import Events
from tests.fakes.talk import TIMEOUT

FOR_EVER = (sys.executable, "-c", "import signal; signal.pause()")


class Started:
    """Children of one test, which are killed at its end, and their ends."""

    def __init__(self) -> None:
        self._ends: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self._children: list[Child] = []

    def __call__(self, *command: str, **given: object) -> Child:
        child = Child(command, self._ends.put, **given)  # type: ignore[arg-type]
        self._children.append(child)
        return child

    def end(self) -> Ended:
        return self._ends.get(timeout=TIMEOUT)

    def close(self) -> None:
        for child in self._children:
            child.close()


@pytest.fixture
def start() -> Iterator[Started]:
    started = Started()
    yield started
    started.close()


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns what lets no thread start from then on, as under a pod's limit of processes."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    return lambda: monkeypatch.setattr(threading.Thread, "start", refuse)


def test_an_input_that_is_not_read_blocks_nobody(start: Started) -> None:
    """A pipe holds 64 KiB."""
    child = start(*FOR_EVER, given=b"x" * 10_000_000)
    assert child.works
    child.kill()
    assert start.end() == Ended(-signal.SIGKILL, b"", b"", killed=True)


def test_an_end_is_seen_although_a_child_of_it_holds_its_output(start: Started) -> None:
    """With all that it has written; its child goes on, as under a shell."""
    start("/bin/sh", "-c", "sleep 1000 & echo $!; echo wrong >&2; exit 3", errors=-1)
    end = start.end()
    os.kill(int(end.output), signal.SIGKILL)
    assert (end.returncode, end.errors, end.killed) == (3, b"wrong\n", False)


def test_an_error_with_the_output_does_not_hide_the_end(
    start: Started, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: bytes) -> None:
        raise RuntimeError("a bug")

    start("/bin/sh", "-c", "echo word; exec sleep 1000", output=fails)
    assert start.end().returncode == -signal.SIGKILL
    assert "an error of the agent with the output" in caplog.text


def test_a_process_that_no_thread_can_follow_is_not_left_running(
    start: Started, no_threads: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[int]()
    real = os.pidfd_open

    def open_it(pid: int) -> int:
        opened.append(pid)
        return real(pid)

    monkeypatch.setattr(os, "pidfd_open", open_it)
    no_threads()
    with pytest.raises(OSError, match="can't start new thread"):
        start(*FOR_EVER)
    with pytest.raises(ProcessLookupError):
        os.kill(opened[0], 0)


def test_helpers_that_no_thread_can_follow_are_logged_and_awaited_by_nobody(
    no_threads: Callable[[], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events = Events()
    no_threads()
    hook = NoticeHook("true", dict(os.environ), events.queue.put, SystemClock())
    hook.tell(Notice("n", NoticeKind.STOP, "aws", 0.0, 0.0), 9.0, 1e9)
    events.next(NoticeHookEnded)
    assert not hook.busy
    assert "--on-notice 'true' cannot be run: can't start new thread" in caplog.text
    Verifier(dict(os.environ), events.queue.put).start(Verify(1, "run", tmp_path.as_uri(), 7))
    result = events.next(Verified)
    assert (result.status, result.detail) == ("unknown", f"{sys.executable}: can't start new thread")
    file = ExcludeFile(str(tmp_path / "left"), {})
    file.add("n7", "gpu")
    file.close()
    assert "cannot be written: can't start new thread; exclude n7" in caplog.text
    assert not (tmp_path / "left").exists()
