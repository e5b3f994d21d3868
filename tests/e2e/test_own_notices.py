"""Notices that are no cloud's, and what an operator has run at one: real files, a real FIFO, a real training process."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.e2e.harness import Machine
from tests.e2e.processes import Running, about, eventually
from tests.e2e.speaker import SPEAKING, saw
from tests.e2e.trainee import Trainee

pytestmark = pytest.mark.wholepath

PROGRAMS = Path(__file__).parent / "programs"


def training(trainee: Trainee, options: str, on_notice: str = "") -> Running:
    """A run that has taken three steps and waits."""
    running = trainee.guarded(f"--every off {options}", SPOTGUARD_ON_NOTICE=on_notice)
    assert trainee.begun(running) == trainee.newest()
    running.say("go 3")
    trainee.stepped(running, 3)
    return running


@pytest.mark.slow
@pytest.mark.torch
def test_a_deadline_makes_a_checkpoint_and_then_ends_the_run(trainee: Trainee) -> None:
    """At 45 s from its end it is told to make one, also with `--every off`; at 30 s the end begins. `status` says so
    beforehand. The next run goes on from there."""
    machine = trainee.machine
    running = training(trainee, "--deadline +45 --window 30")
    running.err.until("deadline from --deadline .* training continues until it is near")
    (standing,) = machine.status()["upcoming"]
    assert (standing["kind"], standing["severity"]) == ("deadline", "later")
    assert standing["then"] == "terminal notice"
    assert 0 < standing["then_in"] <= 15
    running.say("go 1")
    eventually(lambda: machine.committed() != [], "a checkpoint beside training")
    assert machine.status()["notice"] is None
    running.err.until("deadline notice from --deadline: 30.0 s left")
    running.say("free")
    running.out.until("^preempted 75$")
    assert running.ended() == 75
    said = machine.outcome()
    assert (said["kind"], said["code"], said["why"]) == ("deadline", 75, "")
    assert said["step"] == trainee.newest() >= 4
    again = trainee.guarded("--every off")
    assert trainee.begun(again) == said["step"]
    again.say("free")
    trainee.finished(again)
    assert again.ended() == 0


def test_a_deadline_that_is_past_starts_nothing(machine: Machine) -> None:
    """It is said wrongly: the value is named, and the command never ran."""
    running = machine.run("--deadline 2001-01-01T00:00Z", "touch", "ran")
    assert running.ended() == 2
    assert "--deadline '2001-01-01T00:00Z': expected a time to come" in running.err.to_the_end()
    assert not (machine.folder / "ran").exists()


@pytest.mark.torch
@pytest.mark.slow
def test_a_file_ends_the_run(trainee: Trainee) -> None:
    """With the words that are in it; what had run is committed."""
    machine = trainee.machine
    path = machine.folder / "notice"
    running = training(trainee, f"--notice-file {path}")
    path.write_text("maintenance 60 rack 7 loses its power\n")
    running.err.until("gate at step 3")
    running.say("free")
    running.out.until("^preempted 75$")
    assert running.ended() == 75
    said = machine.outcome()
    assert (said["kind"], said["source"], said["detail"]) == (
        "maintenance",
        f"file {path}",
        "rack 7 loses its power",
    )
    assert (said["step"], said["window"], said["code"]) == (3, 60.0, 75)
    assert machine.committed() == [(1, 3, 0)]


@pytest.mark.slow
@pytest.mark.torch
def test_a_file_that_goes_is_taken_back(trainee: Trainee) -> None:
    """Before the save is done: training goes on to its end, and that is no preemption."""
    machine = trainee.machine
    path = machine.folder / "notice"
    running = training(trainee, f"--notice-file {path}")
    running.say("half")  # the save has to wait for the end of this step
    running.out.until("^half$")
    path.write_text("600")
    running.err.until("has the notice")
    path.unlink()
    running.err.until("the notice was withdrawn: training continues")
    running.say("free")
    trainee.finished(running)
    assert running.ended() == 0
    assert machine.outcome()["ended"] == "withdrawn"


@pytest.mark.slow
@pytest.mark.torch
def test_a_line_on_a_fifo_ends_the_run_unless_it_is_cancelled(trainee: Trainee) -> None:
    """What lies at the path decides: the option is the same."""
    machine = trainee.machine
    path = machine.folder / "notice"
    os.mkfifo(path, 0o600)
    running = training(trainee, f"--notice-file {path}")
    running.say("half")
    running.out.until("^half$")
    path.write_text("600\n")
    running.err.until("has the notice")
    path.write_text("cancel\n")
    running.err.until("the notice was withdrawn: training continues")
    running.say("go 1")
    trainee.stepped(running, 4)
    path.write_text('{"kind": "reboot", "window": 90}\n')
    running.err.until("gate at step 4")
    running.say("free")
    running.out.until("^preempted 75$")
    assert running.ended() == 75
    assert (machine.outcome()["kind"], machine.outcome()["window"]) == ("reboot", 90.0)
    assert trainee.newest() == 4


def test_a_command_is_run_at_the_notice_with_its_facts(machine: Machine) -> None:
    """Beside the save; what it says is in the log, and the run ends when both have."""
    path, told = machine.folder / "notice", machine.folder / "told"
    command = f'echo "$SPOTGUARD_NOTICE_KIND $SPOTGUARD_NOTICE_SECONDS_LEFT $SPOTGUARD_RUN_ID" | tee {told}'
    running = machine.run(f"--notice-file {path}", *SPEAKING, SPOTGUARD_ON_NOTICE=command)
    saw(running, "ready")
    assert not told.exists()
    path.write_text("stop 60")
    assert saw(running, "preempt")["kind"] == "stop"
    running.say("commit 3")
    assert saw(running, "leave")["code"] == 75
    assert running.ended() == 75
    assert re.fullmatch(f"stop {about(60)} job\n", told.read_text())
    assert "on-notice: stop" in running.err.to_the_end()
    assert machine.outcome()["why"] == ""


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("second", [None, signal.SIGTERM])
def test_a_command_that_hangs_holds_nothing_up(trainee: Trainee, second: signal.Signals | None) -> None:
    """The save is committed meanwhile. At the reserve the command is killed, with all that it has started; who asks
    for the end does not wait for that either."""
    machine = trainee.machine
    command = "sleep 1000 & sleep 1000"
    window = 8 if second is None else 600
    running = training(trainee, f"--window {window}", on_notice=command)
    running.send(signal.SIGTERM)
    running.err.until("gate at step 3")
    running.say("free")
    running.out.until("^preempted 75$")
    running.err.until("COMMITTED")
    if second is not None:
        running.send(second)
    assert running.ended() == 75
    assert f"--on-notice '{command}' was killed" in running.err.to_the_end()
    assert machine.committed() == [(1, 3, 0)]
    eventually(lambda: not list(machine._mine()), "nothing is left behind")


def test_a_service_passes_on_what_its_operator_says(machine: Machine, aws: AwsSimulator) -> None:
    """Once for the whole machine: a run below it hears of it, and looks at the cloud itself, for that the service does
    not. The service's own command is run once."""
    socket, path, told = (
        machine.runtime / "service" / "agent.sock",
        machine.folder / "notice",
        machine.folder / "told",
    )
    service = machine.spotguard(
        *("agent", "--socket", str(socket), "--provider", "none", "--notice-file", str(path)),
        SPOTGUARD_ON_NOTICE=f'echo "$SPOTGUARD_NOTICE_KIND" >> {told}',
    )
    service.err.until("file .* seeing")
    options = ["--run-id", "job", "--provider", "aws", "--store", machine.store.as_uri()]
    running = machine.start(
        *(sys.executable, str(PROGRAMS / "relayed.py"), str(socket), *options),
        *("--", sys.executable, str(PROGRAMS / "notified.py")),
        AWS_EC2_METADATA_SERVICE_ENDPOINT=aws.endpoint,
    )
    running.out.until("^ready")
    running.err.until("watches nothing: looking for notices here")
    running.err.until("aws spot/instance-action: seeing")
    path.write_text("reboot 60")
    running.out.until("^notice reboot")
    running.say("return")
    assert running.ended() == 75
    assert (machine.outcome()["kind"], machine.outcome()["why"]) == ("reboot", "")
    service.err.until("--on-notice is done")
    assert told.read_text() == "reboot\n"
    assert service.running
