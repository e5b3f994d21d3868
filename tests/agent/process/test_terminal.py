"""Job control with a real terminal: a pseudo-terminal, a small shell on it, and somebody at its keyboard."""

from __future__ import annotations

import os
import signal
import termios
from collections.abc import Callable, Iterator

import pytest

from tests.fakes.awake import STAYS_AWAKE
from tests.fakes.desk import Desk

#: Reports each signal it hears and each line it reads; "q" ends it, "raw" leaves the terminal in raw mode.
COMMAND = f"""{STAYS_AWAKE}
import os, signal, sys, termios, tty
report = int(os.environ["REPORT"])
def say(line): os.write(report, f"command: {{line}}\\n".encode())
for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(signum, lambda n, frame: say(signal.Signals(n).name))
say("ready")
for line in sys.stdin:
    word = line.strip()
    if word == "raw":
        tty.setraw(0)
    say(f"read {{word}}")
    if word == "q":
        sys.exit(3)
"""

#: Never looks at the terminal; ends by SIGUSR1.
DEAF = f"""{STAYS_AWAKE}
import os, signal
report = int(os.environ["REPORT"])
signal.signal(signal.SIGINT, lambda n, frame: os.write(report, b"command: SIGINT\\n"))
os.write(report, b"command: ready\\n")
while True: signal.pause()
"""


@pytest.fixture
def sit() -> Iterator[Callable[..., Desk]]:
    desks = []

    def make(command: str = COMMAND, pipeline: str = "") -> Desk:
        desks.append(Desk(command, pipeline))
        return desks[-1]

    yield make
    for desk in desks:
        desk.close()


def test_ctrl_c_reaches_the_command_once(sit: Callable[..., Desk]) -> None:
    """The command hears the keyboard's SIGINT, the guardian does not, so nothing is passed on a second time."""
    desk = sit()
    desk.run()
    desk.type(b"\x03")
    desk.report.until("command: SIGINT")
    # A signal with a higher number that comes later is delivered later: a SIGINT would be reported before it.
    os.kill(desk.pid, signal.SIGUSR1)
    desk.report.until("command: SIGUSR1")
    desk.type(b"q\n")
    desk.report.until("shell: exited 3")
    assert desk.heard("command: SIGINT") == 1
    assert desk.heard("guardian: SIGINT") == 0


def test_the_keyboard_is_the_commands(sit: Callable[..., Desk]) -> None:
    """What is typed is read by the command, and the terminal comes back when it ends."""
    desk = sit()
    desk.run()
    desk.type(b"hello\nq\n")
    desk.report.until("command: read hello")
    assert desk.report.until("shell: exited") == "shell: exited 3, terminal held by the job"


def test_ctrl_z_stops_the_whole_job_and_fg_continues_it(sit: Callable[..., Desk]) -> None:
    """The shell sees its job stopped; `fg` gives the keyboard back to the command."""
    desk = sit()
    desk.run()
    for _ in range(3):
        desk.type(b"\x1a")
        assert desk.report.until("shell: stopped") == "shell: stopped, terminal held by the job"
        desk.order("fg")
        desk.type(b"again\n")
        desk.report.until("command: read again")
    desk.type(b"\x03")
    desk.report.until("command: SIGINT")
    desk.type(b"q\n")
    desk.report.until("shell: exited 3")


def test_bg_continues_the_command_without_the_terminal(sit: Callable[..., Desk]) -> None:
    """Ctrl-Z, `bg`: the command runs, and the keyboard stays the shell's."""
    desk = sit(DEAF)
    desk.run()
    desk.type(b"\x1a")
    desk.report.until("shell: stopped")
    desk.order("bg")
    desk.report.until("guardian: SIGCONT")
    assert os.tcgetpgrp(desk.keyboard) == desk.shell.pid
    os.kill(desk.pid, signal.SIGUSR1)
    desk.report.until("guardian: ended -10")


def test_a_job_in_the_background_leaves_the_terminal_alone(sit: Callable[..., Desk]) -> None:
    """`spotguard run … &`: Ctrl-C is for whoever is in front, and nobody takes the keyboard away from it."""
    desk = sit(DEAF)
    desk.run("run &")
    assert os.tcgetpgrp(desk.keyboard) == desk.shell.pid
    desk.type(b"\x03")
    os.kill(desk.pid, signal.SIGUSR1)
    desk.report.until("guardian: ended -10")
    assert desk.heard("command: SIGINT") == 0
    assert desk.heard("guardian: SIGINT") == 0
    desk.order("wait")
    assert desk.report.until("shell: exited") == "shell: exited 138, terminal held by the shell"


def test_a_job_in_the_background_that_reads_is_stopped_and_fg_feeds_it(sit: Callable[..., Desk]) -> None:
    """As a shell's user expects: "Stopped (tty input)", and `fg`."""
    desk = sit()
    desk.order("run &")  # and not `desk.run`: the guardian may be stopped before it can say that it stands
    desk.report.until("command: ready")
    desk.order("wait")
    desk.report.until("shell: stopped")
    desk.order("fg")
    desk.type(b"hello\nq\n")
    desk.report.until("command: read hello")
    desk.report.until("shell: exited 3")


def test_a_job_brought_to_the_front_without_sigcont(sit: Callable[..., Desk]) -> None:
    """Bash sends none to a job that runs: Ctrl-C and Ctrl-Z come to us then, and are passed on, once."""
    desk = sit(DEAF)
    desk.run("run &")
    desk.order("cont")
    while os.tcgetpgrp(desk.keyboard) != desk.pid:  # the shell's own next step
        assert desk.shell.poll() is None
    desk.type(b"\x03")
    desk.report.until("command: SIGINT")
    desk.type(b"\x1a")
    desk.report.until("shell: stopped")
    desk.order("fg")
    desk.report.until("guardian: SIGCONT")
    os.kill(desk.pid, signal.SIGUSR1)
    desk.report.until("shell: exited 138")
    assert desk.heard("command: SIGINT") == 1


def test_the_terminal_stays_with_a_pipeline(sit: Callable[..., Desk]) -> None:
    """`spotguard run … | less`: the pager is in our group, and would be stopped if the command had the keyboard."""
    desk = sit(DEAF, "| cat")
    desk.run()
    assert os.tcgetpgrp(desk.keyboard) != desk.command
    os.kill(desk.pid, signal.SIGUSR1)
    desk.report.until("guardian: ended -10")


def test_a_killed_command_leaves_a_sane_terminal(sit: Callable[..., Desk]) -> None:
    """SIGKILL in raw mode: echo and line editing are back, though the shell sees a job that exited."""
    desk = sit()
    before = termios.tcgetattr(desk.slave)
    desk.run()
    desk.type(b"raw\n")
    desk.report.until("command: read raw")
    assert termios.tcgetattr(desk.slave) != before
    os.killpg(desk.command, signal.SIGKILL)
    desk.report.until("shell: exited 137")
    assert termios.tcgetattr(desk.slave) == before


def test_a_hangup_harms_nobody(sit: Callable[..., Desk]) -> None:
    """The window is closed: the command hears SIGHUP, and the guardian sees its end as ever."""
    desk = sit()
    desk.run()
    os.kill(desk.pid, signal.SIGHUP)
    desk.report.until("command: SIGHUP")
    desk.type(b"\x04")
    desk.report.until("shell: exited 0")


def test_the_terminal_comes_back_when_we_fail(sit: Callable[..., Desk]) -> None:
    """A mistake of ours ends the guard, not the training; and the keyboard is our group's again, so the shell's."""
    desk = sit(DEAF)
    desk.run()
    assert os.tcgetpgrp(desk.keyboard) == desk.command
    os.kill(desk.pid, signal.SIGQUIT)
    assert desk.report.until("shell: exited") == "shell: exited 1, terminal held by the job"
    os.kill(desk.command, signal.SIGINT)
    desk.report.until("command: SIGINT")
