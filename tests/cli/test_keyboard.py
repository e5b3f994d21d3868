"""`spotguard run` at a terminal, from the keyboard to what a shell sees."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Callable, Iterator

import pytest

from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.e2e.processes import eventually
from tests.fakes.awake import STAYS_AWAKE
from tests.fakes.desk import Desk
from tests.tiers import few_fast

RUN = [sys.executable, "-m", "spotguard", "run", "--provider", "none", "--run-id", "keys", "--"]

#: Ends by KeyboardInterrupt, after it has said so.
COMMAND = f"""{STAYS_AWAKE}
import os, signal, sys
report = int(os.environ["REPORT"])
try:
    os.write(report, f"command: {{os.getpid()}}\\n".encode())
    if len(sys.argv) > 1: signal.pause()
    for line in sys.stdin: os.write(report, f"command: read {{line}}".encode())
except KeyboardInterrupt:
    os.write(report, b"command: interrupted\\n")
    raise
"""


@pytest.fixture
def sit() -> Iterator[Callable[[str], Desk]]:
    desks = []

    def make(pipeline: str = "") -> Desk:
        desks.append(Desk(COMMAND, pipeline, RUN))
        desks[-1].order("run")
        desks[-1].command = int(desks[-1].report.until("command: ").split()[1])
        return desks[-1]

    yield make
    for desk in desks:
        desk.close()


def test_ctrl_c_ends_it_as_it_would_have_without_us(sit: Callable[[str], Desk]) -> None:
    """The command hears it once, and the shell sees a job that SIGINT ended, so that it leaves its loop."""
    desk = sit("")
    desk.type(b"\x03")
    desk.report.until("shell: killed 2")
    assert desk.heard("command: interrupted") == 1


def test_ctrl_c_ends_a_script_around_it(sit: Callable[[str], Desk]) -> None:
    """`while true; do spotguard run …; done` can be left."""
    desk = sit('; echo "went on" >&"$REPORT"')
    desk.type(b"\x03")
    desk.report.until("shell: killed 2")
    assert desk.heard("command: interrupted") == 1
    assert desk.heard("went on") == 0


def test_ctrl_z_and_fg(sit: Callable[[str], Desk]) -> None:
    """The agent sleeps with its command, and both wake."""
    desk = sit("")
    desk.type(b"\x1a")
    desk.report.until("shell: stopped")
    desk.order("fg")
    desk.type(b"hello\n")
    desk.report.until("command: read hello")
    desk.type(b"\x04")
    desk.report.until("shell: exited 0")


def test_ctrl_c_in_a_pipeline(sit: Callable[[str], Desk]) -> None:
    """`spotguard run … | cat`: the whole group hears the keyboard, and the command hears it once, from us."""
    desk = sit("deaf | cat")  # it never reads the keyboard, which would give it the terminal
    assert os.tcgetpgrp(desk.keyboard) != desk.command
    desk.type(b"\x03")
    desk.report.until("command: interrupted")
    desk.report.until("shell: ")
    assert desk.heard("command: interrupted") == 1


def test_a_terminal_that_stops_background_writers_does_not_stop_us() -> None:
    """`stty tostop`: the command holds the terminal, so that every line of ours is written from the background."""
    desk = Desk(COMMAND, "", RUN)
    try:
        modes = termios.tcgetattr(desk.slave)
        modes[3] |= termios.TOSTOP
        termios.tcsetattr(desk.slave, termios.TCSANOW, modes)
        desk.order("run")
        desk.command = int(desk.report.until("command: ").split()[1])
        desk.type(b"\x04")
        assert desk.report.until("shell: ").startswith("shell: exited 0")
        assert b"guarding pid" in os.read(desk.keyboard, 4096)
        assert desk.heard("shell: stopped, terminal held by the job") == 0
    finally:
        desk.close()


@pytest.mark.parametrize("options", few_fast([([],), (["--outlive"],)]))
def test_ctrl_c_while_a_doomed_machine_is_waited_out(aws: AwsSimulator, options: list[str]) -> None:
    """The command is gone, so the keyboard is ours: the shell sees a job that SIGINT ended, and leaves its loop."""
    watch = ["--provider", "aws", "--metadata-endpoint", aws.endpoint]
    desk = Desk(
        COMMAND, '; echo "went on" >&"$REPORT"', [*RUN[:4], *watch, *options, "--run-id", "wait", "--"]
    )
    try:
        desk.order("run")
        desk.command = int(desk.report.until("command: ").split()[1])
        aws.preempt(120)
        shown = b""
        while b"NOT COMMITTED" not in shown:
            shown += os.read(desk.keyboard, 4096)
        eventually(lambda: os.tcgetpgrp(desk.keyboard) != desk.command, "the keyboard is given back")
        desk.type(b"\x03")
        desk.report.until("shell: killed 2")
        assert desk.heard("went on") == 0
        assert desk.heard("command: interrupted") == 0
    finally:
        desk.close()
