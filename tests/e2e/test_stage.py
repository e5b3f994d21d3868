"""`--stage`: killed at one operation after the other on the disk and in the store, the newest of both is where it goes on."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.e2e.harness import in_order
from tests.e2e.lives import Lives
from tests.e2e.trainee import Trainee

pytestmark = [pytest.mark.torch, pytest.mark.wholepath]


def newest(trainee: Trainee, stage: Path) -> int:
    """The step of the newest checkpoint in either place, read from the names alone."""
    near = in_order(path.parent.name for path in stage.glob("job/checkpoints/*/00000-of-00001.json"))
    found = sorted([*trainee.machine.committed(), *near])
    return found[-1][1] if found else 0


def again(lives: Lives) -> int:
    """The next life, up to where it stands restored; its step."""
    lives.running.say("again")
    lives.pid = int(lives.running.out.until(r"^life (\d+)$")[1])
    return lives.trainee.begun(lives.running)


@pytest.mark.soak  # on a busy machine a life may end its steps before its doom: then it is to be run again
def test_each_life_goes_on_at_the_newest_of_disk_and_store(trainee: Trainee, tmp_path: Path) -> None:
    """Background checkpoints all the time. Seed 4."""
    rng, stage = random.Random(4), tmp_path / "stage"
    lives = Lives.under_run(trainee, f"--every 0.001 --stage {stage}")
    ahead = 0
    for _ in range(20):
        expected, stored = newest(trainee, stage), trainee.newest()
        ahead += expected > stored
        assert again(lives) == expected
        lives.doom(rng.randrange(1, 40), lives.pid)
        lives.running.say("free")
        lives.killed()
    assert ahead, "the disk was never ahead of the store"
    assert again(lives) == newest(trainee, stage)
    lives.kill()
    lives.close()
    # The machine is gone, and its disk with it.
    shutil.rmtree(stage)
    elsewhere = trainee.guarded(f"--every off --stage {stage}", steps=len(trainee.digests) - 1)
    step = trainee.begun(elsewhere)
    assert step == trainee.newest()
    elsewhere.say("go 1")
    trainee.stepped(elsewhere, step + 1)
    elsewhere.say("exit 0")
    assert elsewhere.ended() == 0
