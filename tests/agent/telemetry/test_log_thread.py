"""Nobody who logs waits for whoever reads the log: full pipes, stopped readers, a terminal that stops writers."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotguard.agent.telemetry import logs
from spotguard.agent.telemetry.logs import LogThread
from tests.fakes.full import Full
from tests.fakes.report import TIMEOUT

ROOT = Path(__file__).parents[3]


@pytest.fixture
def full() -> Iterator[Full]:
    made = Full()
    yield made
    made.close()


def count(number: int) -> str:
    return f"{number} missing"


def test_a_full_pipe_holds_nobody_up_and_the_count_of_what_was_dropped_is_said(full: Full) -> None:
    """Each line is taken at once; when somebody reads again, the kept ones come, and how many did not."""
    with open(full.writing, "w", closefd=False) as stream:
        scribe = LogThread(stream, count, kept=3)
        scribe.take("stands")
        scribe.flush()  # the thread stands in its write now: a flush gives up
        for number in range(5):
            scribe.take(f"line {number}")
        full.empty()
        lines = b""
        while b"missing" not in lines:
            lines += os.read(full.reading, 4096)
        scribe.close()
    assert lines.decode().splitlines() == ["stands", "line 0", "line 1", "line 2", "2 missing"]


def test_a_gap_in_the_log_is_told_at_its_place(full: Full) -> None:
    """Before the next line that was taken, in the log's own form."""
    with open(full.writing, "w", closefd=False) as stream:
        scribe = LogThread(stream, count, kept=1)
        scribe.take("stands")
        scribe.flush()
        scribe.take("kept")
        scribe.take("lost")
        full.empty()
        assert os.read(full.reading, 7) == b"stands\n"
        lines = b""
        while b"missing" not in lines:
            lines += os.read(full.reading, 4096)
        scribe.take("next")
        scribe.close()
        assert (lines + os.read(full.reading, 4096)).decode().splitlines() == ["kept", "1 missing", "next"]


def test_the_end_does_not_wait_for_a_reader_that_does_not_read(full: Full) -> None:
    """The exit code is waited for by somebody else."""
    with open(full.writing, "w", closefd=False) as stream:
        handler = logs.configure(json_log=False, stream=stream)
        logging.getLogger("spotguard.agent.test").warning("nobody reads this")
        logs.flush()
        logs.remove(handler)
    full.empty()  # lets the thread go
    assert b"nobody reads this" in os.read(full.reading, 4096)


def test_a_stream_that_is_gone_costs_nothing() -> None:
    """stderr closed, or its reader away: the agent guards on."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as stream:
        for there in (stream, None):
            scribe = LogThread(there, count)
            scribe.take("into the void")
            scribe.close()
    assert "spotguard-log" not in [thread.name for thread in threading.enumerate()]


def test_a_line_that_cannot_be_made_is_named_and_not_raised() -> None:
    """A mistake in a log call must not write a traceback to stderr from the thread that logs."""
    stream = io.StringIO()
    handler = logs.configure(json_log=False, stream=stream)
    logging.getLogger("spotguard.agent.test").info("%d steps", "no number")
    logs.remove(handler)
    assert stream.getvalue().startswith("spotguard: a line of spotguard.agent.test cannot be made: TypeError")


GUARD = """
import os, sys
from dataclasses import replace
from pathlib import Path
from spotguard.agent.config.resolve import resolve
from spotguard.agent import app
from spotguard.agent.telemetry import logs
logs.configure(json_log=False)
options = resolve("run", {"provider": "none", "socket": sys.argv[1], "run-id": "r"}, os.environ)
raise SystemExit(app.run(options, sys.argv[2:], service_socket=Path("/nonexistent")))
"""

SAVES = """
import os, signal, sys, time
sys.path[:0] = [sys.argv[1]]
from pathlib import Path
from tests.fakes.hook import FakeHook
from spotguard.hooks.ipc.protocol import *
hook = FakeHook(Path(os.environ["SPOTGUARD_SOCKET"]))
hook.say(Register(os.getpid(), "r", "train.py", "file:///s"))
hook.hear(Welcome)
os.kill(os.getppid(), signal.SIGTERM)
notice = hook.hear(Preempt)
hook.say(Committed(notice.id, 7, 1000, 0.5, "file:///s/7", time.monotonic()))
sys.exit(hook.hear(Leave).code)
"""


def test_a_whole_preemption_with_a_full_stderr(full: Full, folder: Path) -> None:
    """The notice is told, the save is committed, the exit code comes, and the record is written: with no reader."""
    guard = subprocess.run(
        [sys.executable, "-c", GUARD, str(folder / "r.sock"), sys.executable, "-c", SAVES, str(ROOT)],
        stderr=full.writing,
        timeout=TIMEOUT,
    )
    assert guard.returncode == 75
    assert json.loads((folder / "r.outcome.json").read_text())["committed"] is not None
