"""`spotguard status --watch` wherever it is typed: it redraws, or prints lines, and Ctrl-C is its quiet end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.report import TIMEOUT

WATCH = [sys.executable, "-m", "spotguard", "status", "--watch"]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A guarded command that ends when its stdin does."""
    words = ["run", "--provider", "none", "--run-id", "seen", "--", "cat"]
    guarded = [sys.executable, "-m", "spotguard", *words]
    with subprocess.Popen(
        guarded, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as running:
        assert running.stderr is not None
        assert b"guarding pid" in running.stderr.readline()
        yield running
        running.communicate(timeout=TIMEOUT)


class Terminal:
    """A pseudo-terminal of 80 columns with the watch in front of it."""

    def __init__(self, kind: str) -> None:
        self.keyboard, slave = os.openpty()
        env = {**os.environ, "TERM": kind, "COLUMNS": "80", "LINES": "24"}
        self.watch = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *WATCH], env=env, stdin=slave, stdout=slave, stderr=slave
        )
        os.close(slave)
        self.seen = b""

    def until(self, words: bytes, times: int = 1) -> None:
        while self.seen.count(words) < times:
            assert select.select([self.keyboard], [], [], TIMEOUT)[0], self.seen
            self.seen += self._read()

    def ctrl_c(self) -> int:
        """What the end of it shows is kept as well."""
        os.write(self.keyboard, b"\x03")
        code = self.watch.wait(TIMEOUT)
        while more := self._read():
            self.seen += more
        os.close(self.keyboard)
        return code

    def _read(self) -> bytes:
        try:
            return os.read(self.keyboard, 65536)
        except OSError:  # EIO: nobody holds the other end any more
            return b""


def test_a_terminal_is_redrawn(run: subprocess.Popen[bytes]) -> None:
    """On a screen of its own, which is given back at the end."""
    terminal = Terminal("xterm-256color")
    terminal.until(b"run seen (pid", 3)
    assert terminal.ctrl_c() == 0
    assert terminal.seen.count(b"\x1b[?1049h") == terminal.seen.count(b"\x1b[?1049l") == 1
    assert b"Traceback" not in terminal.seen


def test_a_terminal_that_cannot_redraw_gets_lines(run: subprocess.Popen[bytes]) -> None:
    """Everything once, then a line for each look, and no escape sequence."""
    terminal = Terminal("dumb")
    terminal.until(b" run seen; ", 2)
    assert terminal.ctrl_c() == 0
    assert terminal.seen.count(b"run seen (pid") == 1
    assert b"\x1b" not in terminal.seen
    assert b"Traceback" not in terminal.seen


def test_a_pipe_gets_lines_and_the_end_of_the_run_is_shown(run: subprocess.Popen[bytes]) -> None:
    """What is new is shown whole: here that the run is over."""
    with subprocess.Popen(WATCH, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        lines = iter(watch.stdout)
        assert next(lines).startswith("run seen (pid")
        assert "none is watched" in next(lines)
        assert any(" run seen; " in line for line in lines)
        assert run.stdin is not None
        run.stdin.close()
        run.wait(TIMEOUT)
        run.stdin = None
        assert any("nothing is guarded here" in line for line in lines)
        watch.send_signal(signal.SIGINT)
        _, complaint = watch.communicate(timeout=TIMEOUT)
    assert (watch.returncode, complaint) == (0, "")


def test_a_run_that_is_over_is_watched_for_its_next_start(run: subprocess.Popen[bytes]) -> None:
    """`run` exits with 75 and is started again: who watches it by name need not start again too."""
    command = [*WATCH, "--run-id", "seen"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        lines = iter(watch.stdout)
        assert next(lines).startswith("run seen (pid")
        assert run.stdin is not None
        run.stdin.close()
        run.wait(TIMEOUT)
        run.stdin = None
        assert any(line.startswith("no answer       no spotguard answers at ") for line in lines)
        watch.send_signal(signal.SIGINT)
        _, complaint = watch.communicate(timeout=TIMEOUT)
    assert (watch.returncode, complaint) == (0, "")
