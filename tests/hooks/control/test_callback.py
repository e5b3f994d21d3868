"""`on_notice`: the function is called once, its return means saved, and nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotguard.hooks.control.callback import NoticeCallback, on_notice
from spotguard.hooks.ipc.protocol import Committed, Failed, Preempt
from spotguard.providers.errors import UsageError
from spotguard.providers.notice import Notice, NoticeKind
from tests.fakes.agent import FakeAgent


@pytest.fixture
def path() -> Iterator[Path]:
    """Short, as a socket's path must be."""
    with tempfile.TemporaryDirectory(prefix="sg", dir="/tmp") as name:
        yield Path(name) / "a.sock"


def test_its_return_means_saved(path: Path) -> None:
    """It gets the notice with its deadline, the agent's reserve taken off, on a thread of its own."""
    notices: list[tuple[Notice, str]] = []
    with FakeAgent(path) as agent:
        callback = NoticeCallback(
            lambda n: notices.append((n, threading.current_thread().name)), os.fspath(path)
        )
        try:
            agent.welcome()
            agent.say(Preempt("n1", 30.0, 3.0, "terminate", "a test"))
            assert agent.hear(Committed).id == "n1"
        finally:
            callback.close()
    ((notice, thread),) = notices
    assert (notice.id, notice.kind, notice.source) == ("n1", NoticeKind.TERMINATE, "a test")
    assert notice.deadline - notice.seen_at == pytest.approx(27.0)
    assert thread == "spotguard-on-notice"


def test_a_script_that_ends_while_it_returns_is_saved(path: Path) -> None:
    """The loop saved, and the interpreter closes the connection before the function has woken."""
    called, saved = threading.Event(), threading.Event()

    def wait_for_the_loop(notice: Notice) -> None:
        called.set()
        saved.wait()

    with FakeAgent(path) as agent:
        callback = NoticeCallback(wait_for_the_loop, os.fspath(path))
        agent.welcome()
        agent.say(Preempt("n1", 30.0, 3.0, "terminate", "a test"))
        called.wait()
        closing = threading.Thread(target=callback.close)
        closing.start()
        closing.join(0.05)
        assert closing.is_alive()
        saved.set()
        closing.join()
        assert agent.hear(Committed).id == "n1"


def test_a_notice_at_exit_is_answered(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 starts no thread then: the function runs on one that was made before."""

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with FakeAgent(path) as agent:
        callback = NoticeCallback(lambda notice: None, os.fspath(path))
        try:
            agent.welcome()
            with monkeypatch.context() as ending:
                ending.setattr(threading.Thread, "start", refused)
                for id in ("n1", "n2"):
                    agent.say(Preempt(id, 30.0, 3.0, "terminate", "a test"))
                    assert agent.hear(Committed).id == id
        finally:
            callback.close()


def test_a_function_that_hangs_in_one_notice_is_called_for_the_next(path: Path) -> None:
    """The next one returns; the interpreter's lock stays easy to get for the one that still saves."""
    usual, saved = sys.getswitchinterval(), threading.Event()

    def save(notice: Notice) -> None:
        if notice.id == "n1":
            saved.wait()

    with FakeAgent(path) as agent:
        callback = NoticeCallback(save, os.fspath(path))
        try:
            agent.welcome()
            for id in ("n1", "n2"):
                agent.say(Preempt(id, 30.0, 3.0, "terminate", "a test"))
            assert agent.hear(Committed).id == "n2"
            callback._calls[1][0].done.wait()
            assert sys.getswitchinterval() < usual
            saved.set()
            assert agent.hear(Committed).id == "n1"
        finally:
            saved.set()
            callback.close()
    assert sys.getswitchinterval() == usual


@pytest.mark.parametrize(
    ("error", "said"),
    [(ValueError("no"), "ValueError: no"), (SystemExit(3), "SystemExit: 3")],
    ids=["error", "exit"],
)
def test_an_error_of_a_callback_is_no_save(error: BaseException, said: str, path: Path) -> None:
    """Said to the agent, an exit too: it ends the function's thread, not the process."""

    def fail(notice: Notice) -> None:
        raise error

    with FakeAgent(path) as agent:
        callback = NoticeCallback(fail, os.fspath(path))
        try:
            agent.welcome()
            agent.say(Preempt("n1", 30.0, 3.0, "terminate", "a test"))
            failed = agent.hear(Failed)
            assert (failed.id, failed.reason) == ("n1", f"on_notice: {said}")
        finally:
            callback.close()


def test_without_an_agent_it_is_only_a_decorator() -> None:
    """The function comes back as it is; no thread, no connection."""

    @on_notice
    def save(notice: Notice) -> None:
        """It is never called."""

    assert callable(save)
    assert not [t for t in threading.enumerate() if t.name == "spotguard-listener"]


def test_a_callback_that_cannot_be_called_is_refused() -> None:
    """By its value."""
    with pytest.raises(UsageError, match="got 3"):
        on_notice(3)  # type: ignore[arg-type]


def test_it_loads_no_torch() -> None:
    """Who saves by themselves pays for a thread and a socket."""
    code = "import sys, spotguard; spotguard.on_notice(print); print(*{'torch', 'numpy'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "\n"
    )
