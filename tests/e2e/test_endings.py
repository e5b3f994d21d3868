"""How `run` ends when nobody is registered: the command's own code, or 75 after a notice."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.e2e.harness import Machine
from tests.e2e.processes import Running, about, eventually
from tests.tiers import few_fast

pytestmark = pytest.mark.wholepath

OBEY = str(Path(__file__).parent / "programs" / "obey.py")


def obeying(machine: Machine, options: str, *words: str) -> Running:
    running = machine.run(options, sys.executable, OBEY, *words)
    running.out.until("^ready")
    return running


@pytest.mark.parametrize(
    ("command", "code"),
    few_fast([("exit 3", 3), ("kill -KILL $$", 137), ("exit 0", 0), ("kill -TERM $$", 143)], 2),
)
def test_a_command_that_ends_by_itself_gives_its_code(machine: Machine, command: str, code: int) -> None:
    """Its own code, or 128+n when a signal killed it; no outcome, because there was no notice."""
    assert machine.run("", "sh", "-c", command).ended() == code
    assert list((machine.runtime / "spotguard").glob("job*")) == []


@pytest.mark.parametrize(("options", "window"), few_fast([("", 25.0), ("--window 8", 8.0)]))
def test_sigterm_to_run_is_a_notice(machine: Machine, options: str, window: float) -> None:
    """It has 25 s, or --window; a command that registered nothing gets TERM at once and ends as it wants: 75."""
    running = obeying(machine, options, "TERM=0")
    running.send(signal.SIGTERM)
    running.out.until("^TERM$")
    assert running.ended() == 75
    outcome = machine.outcome()
    assert (outcome["kind"], outcome["window"], outcome["code"]) == ("signal", window, 75)
    assert (outcome["committed"], outcome["why"]) == (None, "no process was registered")
    assert outcome["left"] == pytest.approx(window)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_on_a_machine_that_is_going_already_the_exit_waits(
    machine: Machine, aws: AwsSimulator, signum: int, code: int
) -> None:
    """The notice stood before the command began: whoever would start it again is kept waiting, a signal ends that."""
    aws.preempt(120)
    running = machine.run("", sys.executable, OBEY, "TERM=0", aws=aws)
    running.err.until(f"the notice came before anything was trained: waiting {about(120)}")
    said = machine.status()
    assert (said["phase"], said["command"], said["notice"]) == ("waiting", None, None)
    assert machine.outcome()["code"] == 75
    assert running.running
    running.send(signum)
    assert running.ended() == code


def test_a_machine_that_was_going_and_stays_gives_its_exit_back(machine: Machine, aws: AwsSimulator) -> None:
    """The deadline passes: 75, once."""
    aws.preempt(3)
    running = machine.run("", sys.executable, OBEY, "TERM=0", aws=aws)
    assert running.ended() == 75
    assert running.err.to_the_end().count("before anything was trained") == 1
    assert running.out.to_the_end().count("ready") <= 1


def test_the_signal_and_the_exit_code_can_be_chosen(machine: Machine) -> None:
    """--signal is what the command is sent, --exit-code what the launcher over us reads."""
    running = obeying(machine, "--signal USR1 --exit-code 99", "USR1=1", "TERM=2")
    running.send(signal.SIGTERM)
    assert running.ended() == 99
    assert running.out.to_the_end().splitlines()[1:] == ["USR1"]


def test_signal_none_sends_nothing_until_the_reserve(machine: Machine) -> None:
    """The command is left alone for the window, then killed at the reserve."""
    running = obeying(machine, "--signal none --window 3 --reserve 1", "TERM=2")
    running.send(signal.SIGTERM)
    assert running.ended() == 75
    assert running.out.to_the_end().splitlines()[1:] == []
    outcome = machine.outcome()
    assert (outcome["ended"], outcome["returncode"]) == ("killed at the reserve", -signal.SIGKILL)


def test_a_command_that_does_not_obey_is_killed_at_the_reserve(machine: Machine) -> None:
    """TERM first, with the rest of the window; SIGKILL when only the reserve is left."""
    running = obeying(machine, "--window 4 --reserve 1", "TERM=")
    running.send(signal.SIGTERM)
    assert running.ended() == 75
    assert running.out.to_the_end().splitlines()[1:] == ["TERM"]
    assert machine.outcome()["ended"] == "signalled, then killed at the reserve"


def test_a_second_sigterm_ends_at_once(machine: Machine) -> None:
    """Whoever asks twice does not wait for the window."""
    running = obeying(machine, "--signal none --window 600", "TERM=4")
    running.send(signal.SIGTERM)
    running.err.until("notice from SIGTERM")
    eventually(lambda: machine.status()["notice"]["seconds_left"] < 598, "two at once are one")
    running.send(signal.SIGTERM)
    running.out.until("^TERM$")
    assert running.ended() == 75
    assert machine.outcome()["ended"] == "ended at once by SIGTERM"


def test_sigint_reaches_the_command_once_and_is_no_notice(machine: Machine) -> None:
    """Ctrl-C: the command's own code, and no outcome."""
    running = obeying(machine, "--max-restarts 3", "INT=5")
    running.send(signal.SIGINT)
    assert running.ended() == 5
    assert running.out.to_the_end().splitlines()[1:] == ["INT"]
    assert not machine.socket().with_suffix(".outcome.json").exists()


def test_a_crash_is_restarted_as_often_as_said(machine: Machine) -> None:
    """--max-restarts counts crashes: the first start and two more, then the command's code."""
    running = machine.run("--max-restarts 2", "sh", "-c", "echo started; exit 3")
    assert running.ended() == 3
    assert running.out.to_the_end().splitlines() == ["started"] * 3


def test_a_preemption_is_never_restarted(machine: Machine) -> None:
    """With restarts left, a command that ends after a notice stays ended."""
    running = obeying(machine, "--max-restarts 5", "TERM=3")
    running.send(signal.SIGTERM)
    assert running.ended() == 75
    assert running.out.to_the_end().count("ready") == 1


def test_the_streams_are_the_commands_own(machine: Machine) -> None:
    """Every byte of both, in order, and stdin to its end; our own lines go to stderr alone."""
    noise = "(bytes(range(256)) * 500)"
    code = f"import os, sys; os.write(1, {noise}); os.write(2, {noise}[::-1]); os.write(1, sys.stdin.buffer.read())"
    running = machine.run("--log-level error", sys.executable, "-c", code)
    running.say("from stdin")
    running.hush()
    assert running.ended() == 0
    running.out.to_the_end()
    running.err.to_the_end()
    assert running.out.data == bytes(range(256)) * 500 + b"from stdin\n"
    assert running.err.data == (bytes(range(256)) * 500)[::-1]


@pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("./a-text", 126)])
def test_a_command_that_cannot_be_started_is_said_in_one_line(
    machine: Machine, command: str, code: int
) -> None:
    """The shell's own codes, the command's name, and the way out."""
    (machine.folder / "a-text").write_text("not a program")
    running = machine.run("", command)
    assert running.ended() == code
    (line,) = running.err.to_the_end().splitlines()
    assert line.startswith("spotguard: error: ")
    assert command in line
    assert not machine.socket().exists()
