"""SIGKILL of the training process at every phase of a save, and at random instants: the newest whole checkpoint
is restored, bit for bit, and never a part of one."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.e2e.harness import Machine
from tests.e2e.lives import Drill, Lives
from tests.e2e.speaker import SPEAKING, saw
from tests.e2e.trainee import Trainee

pytestmark = pytest.mark.wholepath


@pytest.mark.slow
@pytest.mark.torch
def test_an_emergency_save_is_killed_before_each_of_its_operations(trainee: Trainee) -> None:
    """First right at the start, then one operation on the file system later each time, until a save gets through."""
    lives = Lives.under_run(trainee)
    deaths: list[tuple[Path, bool]] = []
    count = 0
    for _ in range(100):
        count += 1
        start = lives.again()
        lives.running.say("go 1")
        trainee.stepped(lives.running, start + 1)
        lives.doom(count, lives.pid)
        drill = Drill(trainee.machine.socket())
        committed = lives.running.err.until("(NOT )?COMMITTED")[0] == "COMMITTED"
        drill.join()
        if committed:
            if {whole for _, whole in deaths} == {False, True}:
                break
            # Objects are put beside each other, and race for their folder: this save had fewer operations before its manifest
            # than the last one, and the deaths have passed over those between manifest and marker.
            count -= 3
            lives.kill()
            continue
        at = Path(lives.running.out.until(r"^doom at \S+ (.+)$")[1])
        lives.killed()
        deaths.append((at, trainee.newest() > start))
    # Objects, manifest, marker: each is a name made, a file opened, renamed, and its folder opened to be flushed.
    assert len(deaths) >= 9, deaths
    for at, whole in deaths:
        if "00000-of-00001" in at.parts or at.name == "00000-of-00001.json":
            assert not whole, f"whole before {at} was there"
        assert whole or at.name != "COMMIT.json", "a later death left less"
    assert {whole for _, whole in deaths} == {False, True}, (
        "no death between manifest and marker, or none before"
    )


@pytest.mark.torch
def test_a_process_that_is_told_and_dies_before_its_boundary_leaves_what_was(trainee: Trainee) -> None:
    """In the middle of optimizer.step() a save waits for the boundary; a death then is no loss of what is whole."""
    lives = Lives.under_run(trainee)
    lives.again()
    lives.running.say("go 2")
    trainee.stepped(lives.running, 2)
    lives.running.say("save")
    lives.running.out.until("^saved 2$")
    lives.running.say("half")
    lives.running.out.until("^half$")
    drill = Drill(trainee.machine.socket())
    lives.running.err.until(": begun")
    lives.kill()
    drill.join()
    assert lives.again() == 2
    lives.kill()
    lives.close()


def test_a_process_that_dies_in_its_notice_ends_the_run_with_75(machine: Machine) -> None:
    """The command itself was killed before it has answered: run me again, and the outcome says why."""
    running = machine.run("--window 120", *SPEAKING)
    pid = saw(running, "ready")["pid"]
    running.send(signal.SIGTERM)
    saw(running, "preempt")
    machine.kill(pid)
    assert running.ended() == 75
    outcome = machine.outcome()
    assert (outcome["committed"], outcome["why"]) == (None, "its process died before the commit")
    assert outcome["returncode"] == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.torch
def test_a_process_that_dies_in_its_save_ends_the_run_with_75(trainee: Trainee) -> None:
    """The same with a save that has begun: nothing of it is whole."""
    running = trainee.guarded()
    trainee.begun(running)
    pid = int(running.out.text.split("registered ")[1].split()[0])
    running.say("go 2")
    trainee.stepped(running, 2)
    running.say(f"doom 3 {pid}")
    running.out.until("^doomed$")
    running.send(signal.SIGTERM)
    assert running.ended() == 75
    outcome = trainee.machine.outcome()
    assert outcome["committed"] is None
    assert outcome["why"] == "its process died before the commit"
    assert outcome["returncode"] == -signal.SIGKILL
    assert trainee.machine.committed() == []


def random_instants(trainee: Trainee, seed: int, count: int) -> None:
    """Background checkpoints all the time, and a death after a random step, or at a random operation of a save, or
    before anything is restored."""
    rng = random.Random(seed)
    lives = Lives.under_run(trainee, "--every 0.01")
    restored = []
    for _ in range(count):
        if rng.random() < 0.2:
            lives.killed_at_its_beginning()
        start = lives.again()
        restored.append(start)
        if rng.random() < 0.5:
            lives.doom(rng.randint(1, 60), lives.pid)
            lives.running.say("free")
            lives.killed()
        else:
            lives.running.say("free")
            trainee.stepped(lives.running, start + rng.randint(1, 25))
            lives.kill()
    lives.again()
    lives.kill()
    assert len(set(restored)) > count // 4, f"hardly a checkpoint was made: {restored}"
    lives.close()


@pytest.mark.soak
@pytest.mark.torch
@pytest.mark.parametrize("seed", range(1, 14))
def test_background_saves_are_killed_at_random_instants(trainee: Trainee, seed: int) -> None:
    """Thirteen times twenty-five lives, each training on from where the last one's newest checkpoint stands."""
    random_instants(trainee, seed, count=25)
