"""The agent is killed, alone or with the training process: training and its checkpoints go on, or go on from the
newest whole one."""

from __future__ import annotations

import random
import signal

import pytest

from spotguard.providers.simulator.aws.service import AwsSimulator
from tests.e2e.harness import Machine
from tests.e2e.lives import Drill, Lives
from tests.e2e.processes import Running, eventually
from tests.e2e.speaker import SPEAKING, saw
from tests.e2e.trainee import Trainee

pytestmark = pytest.mark.wholepath


def service(trainee: Trainee, *options: str) -> Running:
    """An agent by itself, on the socket that the run had."""
    agent = trainee.machine.spotguard("agent", "--socket", str(trainee.machine.socket()), *options)
    if "none" in options:
        eventually(lambda: trainee.machine.sessions() >= 0, "listening")
    return agent


@pytest.mark.torch
def test_training_outlives_its_agent_and_hears_the_next_one(trainee: Trainee, aws: AwsSimulator) -> None:
    """SIGKILL of `spotguard run`: training says once that it is unguarded and goes on, so do its checkpoints; the
    agent that comes next tells the notice that stands."""
    machine = trainee.machine
    running = trainee.guarded("--every 0.05", steps=900)
    trainee.begun(running)
    running.say("go 5")
    trainee.stepped(running, 5)
    running.kill()
    assert running.ended() == -signal.SIGKILL
    running.err.until("unguarded: no agent answers")
    before = trainee.newest()
    running.say("go 5")
    trainee.stepped(running, 10)
    running.say("save")
    running.out.until("^saved 10$")
    assert trainee.newest() == 10 > before
    # No agent says when a background save is committed: train on until one is.
    step = 10
    while trainee.newest() == 10:
        step += 1
        running.say("go 1")
        trainee.stepped(running, step)

    aws.preempt(60)
    service(trainee, "--provider", "aws", "--metadata-endpoint", aws.endpoint)
    running.err.until("guarded again")
    running.err.until(f"step {step} is committed")
    running.say("free")
    running.out.until("^preempted 75$")
    assert running.err.to_the_end().count("unguarded") == 1
    assert trainee.newest() == step
    assert machine.outcomes_in_store()[-1]["step"] == step


def test_the_next_run_ends_what_a_killed_one_left(machine: Machine) -> None:
    """It says which process, and starts nothing before that one has committed and left."""
    first = machine.run("", *SPEAKING)
    pid = saw(first, "ready")["pid"]
    first.kill()
    assert first.ended() == -signal.SIGKILL
    second = machine.run("", *SPEAKING)
    second.err.until(rf"pid {pid} is left of a spotguard run that was killed")
    first.err.until("guarded again")
    assert saw(first, "preempt")["kind"] == "orphan"
    first.say("commit 3")
    assert saw(first, "leave")["code"] == 75
    second.err.until("starting the command again: no training of the spotguard run that was killed is left")
    outcome = machine.outcome()
    assert (outcome["kind"], outcome["step"], outcome["ended"]) == ("orphan", 3, "left when asked")
    assert (outcome["code"], outcome["returncode"]) == (None, None)
    assert saw(second, "ready")["pid"] != pid
    assert second.out.text.count("ready") == 1
    second.say("end")
    assert second.ended() == 0
    assert not machine.socket().with_name(".job.sock.lock").exists()


@pytest.mark.slow
@pytest.mark.torch
def test_the_next_run_ends_what_a_killed_one_left_and_goes_on_from_there(trainee: Trainee) -> None:
    """It says which process; the orphan's newest step is committed before it ends, and nothing is trained twice at once."""
    machine = trainee.machine
    first = trainee.guarded()
    trainee.begun(first)
    (session,) = machine.status()["sessions"]
    first.kill()
    assert first.ended() == -signal.SIGKILL
    first.say("go 3")
    trainee.stepped(first, 3)
    assert trainee.newest() == 0

    second = trainee.guarded()
    second.err.until(rf"pid {session['pid']} is left of a spotguard run that was killed")
    first.err.until("guarded again")
    second.err.until("committed step 3")
    first.say("free")  # what it reads is its next step, before which it is told to leave
    first.out.until("^preempted 75$")
    second.err.until("starting the command again: no training of the spotguard run that was killed is left")
    assert trainee.begun(second) == 3
    assert "step 4" not in first.out.to_the_end()
    outcome = machine.outcome()
    assert (outcome["kind"], outcome["step"], outcome["ended"]) == ("orphan", 3, "left when asked")
    assert (outcome["code"], outcome["returncode"]) == (None, None)
    second.say("free")
    trainee.finished(second)
    assert second.ended() == 0
    assert not machine.socket().with_name(".job.sock.lock").exists()


@pytest.mark.slow
@pytest.mark.torch
def test_a_drill_ends_with_the_agent_that_played_it(trainee: Trainee) -> None:
    """Nobody is left to say that the drill is over: training goes on by itself, long before the drill's deadline."""
    running = trainee.guarded()
    trainee.begun(running)
    running.say("stall 1")
    running.out.until("^doomed$")
    running.say("go 1")
    trainee.stepped(running, 1)
    drill = Drill(trainee.machine.socket(), window=600)
    running.out.until("^doom at")
    running.kill()
    drill.join()
    assert "stopped answering" in drill.error or "ended before" in drill.error
    running.say("go 1")
    trainee.stepped(running, 2)


def deaths(trainee: Trainee, counts: list[int], *, both: bool) -> None:
    """A new agent for each life, and a notice during whose save the agent (and the process) is killed."""
    lives = Lives.under(trainee, trainee.machine.socket())
    for count in counts:
        agent = service(trainee, "--provider", "none")
        start = lives.again()
        lives.running.say("go 1")
        trainee.stepped(lives.running, start + 1)
        eventually(lambda: trainee.machine.sessions() == 1, "registered")
        lives.doom(count, agent.pid, *([lives.pid] if both else []))
        drill = Drill(trainee.machine.socket(), preempt=True)
        assert agent.ended() == -signal.SIGKILL
        drill.join()
        if both:
            lives.killed()
        else:
            lives.running.err.until(f"step {start + 1} is committed")
            assert trainee.newest() == start + 1
            lives.kill()
    lives.again()
    lives.kill()
    lives.close()


@pytest.mark.slow
@pytest.mark.torch
def test_an_emergency_save_commits_though_its_agent_is_killed(trainee: Trainee) -> None:
    """At the first operation, within the objects, at the manifest and at the marker."""
    deaths(trainee, [1, 4, 7, 10], both=False)


@pytest.mark.slow
@pytest.mark.torch
def test_both_are_killed_in_an_emergency_save(trainee: Trainee) -> None:
    """At the same instants: what is restored is whole."""
    deaths(trainee, [1, 4, 7, 10], both=True)


@pytest.mark.soak
@pytest.mark.torch
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_both_are_killed_at_hundreds_of_instants(trainee: Trainee, seed: int, both: bool) -> None:
    """The same at random operations, two hundred times."""
    rng = random.Random(seed)
    deaths(trainee, [rng.randint(1, 14) for _ in range(25)], both=both)
