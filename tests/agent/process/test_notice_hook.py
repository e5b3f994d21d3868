"""The operator's own command at a notice: real shells, and nobody who waits for them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotguard.agent.config.options import NOTICE_FACTS
from spotguard.agent.events import NoticeHookEnded
from spotguard.agent.process.notice_hook import NoticeHook
from spotguard.providers.clock import SystemClock
from spotguard.providers.notice import Notice, NoticeKind
from tests.fakes.serving import Events
from tests.fakes.talk import TIMEOUT

NOTICE = Notice("aws/1", NoticeKind.STOP, "aws spot/instance-action", 0.0, 0.0, detail="stop\nat noon")
FOR_EVER = "read never < $fifo"


class Heard:
    """A herald, its events, and what it logs."""

    def __init__(self, command: str, log: pytest.LogCaptureFixture, **env: str) -> None:
        self.events = Events()
        self.clock = SystemClock()
        self.log = log
        self.notice_hook = NoticeHook(command, {**os.environ, **env}, self.events.queue.put, self.clock)

    def tell(self, left: float = 99.9, until: float = TIMEOUT) -> None:
        self.notice_hook.tell(NOTICE, left, self.clock.monotonic() + until)

    def ended(self) -> list[str]:
        """What was logged up to the end of one command."""
        self.events.next(NoticeHookEnded)
        return [record.getMessage() for record in self.log.records if record.name == "spotguard.agent"]


@pytest.fixture
def fifo(folder: Path) -> Path:
    """Who reads it waits: nobody ever writes."""
    path = folder / "fifo"
    os.mkfifo(path)
    return path


@pytest.fixture(autouse=True)
def _everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "spotguard")


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name == "spotguard-on-notice":  # at its last line
            thread.join(TIMEOUT)
            assert not thread.is_alive()


def test_it_has_the_facts_in_its_environment(caplog: pytest.LogCaptureFixture) -> None:
    """Each in one line; whole seconds, as a shell can reckon with. Its words go to the log."""
    shown = " ".join(f'"${name}"' for name in NOTICE_FACTS)
    heard = Heard(f"printf '<%s>\\n' {shown}; echo $((SPOTGUARD_NOTICE_SECONDS_LEFT + 1)) >&2", caplog)
    heard.tell(left=99.9)
    said = ["aws/1", "stop", "terminal", "aws spot/instance-action", "99", "stop at noon"]
    lines = [f"on-notice: <{value}>" for value in said]
    assert heard.ended() == [*lines, "on-notice: 100", "--on-notice is done"]
    assert not heard.notice_hook.busy


def test_a_failure_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """With the command, and how it ended; a command that is not there is one."""
    heard = Heard("exit 3", caplog)
    heard.tell()
    assert heard.ended() == ["--on-notice 'exit 3' failed: exit code 3 [SG110]"]
    caplog.clear()
    heard = Heard("kill -USR1 $$", caplog)
    heard.tell()
    assert heard.ended() == ["--on-notice 'kill -USR1 $$' failed: SIGUSR1 [SG110]"]
    caplog.clear()
    heard = Heard("no-such-command-here 2>/dev/null", caplog)
    heard.tell()
    assert heard.ended() == ["--on-notice 'no-such-command-here 2>/dev/null' failed: exit code 127 [SG110]"]


def test_at_its_limit_it_is_killed_with_what_it_has_started(
    caplog: pytest.LogCaptureFixture, fifo: Path, folder: Path
) -> None:
    """Its group; nobody waits for it any longer."""
    pids = folder / "pids"
    command = f"sh -c 'echo $$ > {pids}; {FOR_EVER}' & {FOR_EVER}"
    heard = Heard(command, caplog, fifo=str(fifo))
    heard.tell(until=0.5)
    assert heard.ended() == [f"--on-notice {command!r} was killed: it had not ended in its time [SG110]"]
    if pids.exists():  # else it was killed before it had begun
        assert _gone(int(pids.read_text()))


def test_at_the_end_what_still_runs_is_killed(caplog: pytest.LogCaptureFixture, fifo: Path) -> None:
    """However long it might have had; what it had written is logged."""
    heard = Heard(f"echo begun; {FOR_EVER}", caplog, fifo=str(fifo))
    heard.tell()
    while "on-notice: begun" not in caplog.messages:
        assert heard.notice_hook.busy
        heard.clock.wait(threading.Event(), 0.001)
    heard.notice_hook.close()
    assert "was killed" in heard.ended()[-1]
    assert not heard.notice_hook.busy


def test_it_has_a_group_of_its_own_and_no_input(caplog: pytest.LogCaptureFixture) -> None:
    """Ctrl-C is not for it, and the terminal is the command's."""
    heard = Heard("cat; ps -o pgid= -p $$ | tr -d ' '; echo $$", caplog)
    heard.tell()
    group, pid, _ = heard.ended()
    assert group == pid


def test_output_without_an_end_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    """Lines, and bytes that never come to be one."""
    heard = Heard("seq 1000; head -c 100000 /dev/zero | tr '\\0' x", caplog)
    heard.tell()
    said = heard.ended()
    assert len(said) == 202
    assert said[-2:] == ["on-notice: more than 200 lines: the rest is not logged", "--on-notice is done"]


def test_it_runs_once_for_each_notice_and_not_without_an_end(
    caplog: pytest.LogCaptureFixture, fifo: Path
) -> None:
    """A source gone wild does not fill the machine with shells."""
    heard = Heard(FOR_EVER, caplog, fifo=str(fifo))
    for _ in range(6):
        heard.tell()
    refused = [text for text in caplog.messages if "it runs 4 times already" in text]
    assert len(refused) == 2
    heard.notice_hook.close()
    for _ in range(4):
        heard.ended()


def test_a_shell_that_cannot_be_started_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """An environment that is too large, say."""
    heard = Heard("true", caplog, HUGE="x" * 10_000_000)
    heard.tell()
    (line,) = heard.ended()
    assert line.startswith("--on-notice 'true' cannot be run: ")


def _gone(pid: int) -> bool:
    """Whether that process has ended, in a moment or so: its killer does not wait for it."""
    clock, end = SystemClock(), SystemClock().monotonic() + TIMEOUT
    while clock.monotonic() < end:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                if file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X"):
                    return True
        except OSError:
            return True
        clock.wait(threading.Event(), 0.001)
    return False
