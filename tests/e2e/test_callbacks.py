"""`spotguard.on_notice`: for those who save by themselves, several at once too. No torch in here."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.e2e.harness import Machine
from tests.e2e.processes import Running, about, eventually

pytestmark = pytest.mark.wholepath

NOTIFIED = str(Path(__file__).parent / "programs" / "notified.py")


def registered(machine: Machine, running: Running, count: int = 1) -> None:
    for _ in range(count):
        running.out.until("^ready")
    # It says so before its socket's thread has.
    eventually(lambda: machine.sessions() == count, "registered")


def test_a_return_means_saved(machine: Machine, aws: AwsSimulator) -> None:
    """The function gets the notice, and only when it has returned is the command ended."""
    running = machine.run("", sys.executable, NOTIFIED, aws=aws)
    registered(machine, running)
    aws.preempt(120)
    running.out.until(f"^notice terminate {about(120)} ")
    running.say("return")
    running.out.until("^TERM$")
    assert running.ended() == 75
    outcome = machine.outcome()
    assert (outcome["ended"], outcome["why"]) == ("TERM after the commit", "")
    assert outcome["committed"] is not None
    assert list(machine.folder.glob("store*")) == [], "it has no store of ours"


def test_a_signal_that_wakes_nobody_is_sent_again(machine: Machine) -> None:
    """The function has returned and the main thread waits on: a second SIGTERM, and no SIGKILL."""
    running = machine.run("--window 11 --reserve 1", sys.executable, NOTIFIED, "deaf")
    registered(machine, running)
    running.send(signal.SIGTERM)
    running.say("return")
    running.out.until("^TERM$")
    assert running.ended() == 75
    assert "still there after SIGTERM: SIGTERM again" in running.err.to_the_end()
    outcome = machine.outcome()
    assert (outcome["ended"], outcome["returncode"]) == ("TERM after the commit", 4)


def test_a_failure_is_said_and_the_command_ended(machine: Machine) -> None:
    """An exception is no save: its words are in the outcome and in the log."""
    running = machine.run("", sys.executable, NOTIFIED)
    registered(machine, running)
    running.send(signal.SIGTERM)
    running.say("raise no room left")
    assert running.ended() == 75
    outcome = machine.outcome()
    assert outcome["committed"] is None
    assert outcome["why"] == "on_notice: OSError: no room left"
    assert "NOT COMMITTED (on_notice: OSError: no room left)" in running.err.to_the_end()


def test_a_function_that_never_returns_is_ended_at_the_reserve(machine: Machine) -> None:
    """Its command is killed when only the reserve is left, and the outcome does not claim a save."""
    running = machine.run("--window 2 --reserve 1", sys.executable, NOTIFIED)
    registered(machine, running)
    running.send(signal.SIGTERM)
    assert running.ended() == 75
    outcome = machine.outcome()
    assert (outcome["committed"], outcome["ended"]) == (None, "killed at the reserve")


def test_all_processes_of_a_run_are_waited_for(machine: Machine) -> None:
    """Two independent processes under one run: the first to have saved does not end the second."""
    both = f"{sys.executable} {NOTIFIED} <one & {sys.executable} {NOTIFIED} <two & wait; exit 9"
    keyboards = [machine.folder / "one", machine.folder / "two"]
    for keyboard in keyboards:
        os.mkfifo(keyboard)
    running = machine.run("", "sh", "-c", both)
    with keyboards[0].open("w") as one, keyboards[1].open("w") as two:
        registered(machine, running, 2)
        running.send(signal.SIGTERM)
        running.out.until("^notice signal")
        running.out.until("^notice signal")
        print("return", file=one, flush=True)
        running.err.until("saved by a function of its own")
        assert machine.status()["phase"] == "saving"
        print("raise only here", file=two, flush=True)
        running.out.until("^TERM$")
        running.out.until("^TERM$")
        assert running.ended() == 75
    outcome = machine.outcome()
    assert outcome["why"] == "1 of 2: on_notice: OSError: only here"
    assert sorted(s["why"] for s in outcome["sessions"]) == ["", "on_notice: OSError: only here"]


def test_without_an_agent_nothing_is_called(machine: Machine) -> None:
    """The same script by itself runs as if spotguard were not there."""
    alone = machine.start(sys.executable, NOTIFIED)
    alone.out.until("^ready")
    alone.send(signal.SIGTERM)
    assert alone.ended() == 4
    assert alone.err.to_the_end() == ""
