"""When the newest checkpoint is read again, what stops it, and what follows from damage."""

from __future__ import annotations

import logging

import pytest

from spotguard.agent.actions import Log, PauseVerification, StopVerification, Verify
from spotguard.agent.events import Verified
from spotguard.hooks.ipc.protocol import CheckpointDamaged, Position, Preempt
from tests.fakes.story import Story

HOUR = 3600.0


class Run:
    """A command under `--verify-every 1`, and the positions of its ranks."""

    def __init__(self, ranks: tuple[int, ...] = (0,), every: float | None = HOUR) -> None:
        self.story = Story(verify_every=every)
        self.numbers = [self.story.opens(100 + rank, rank=rank, world=2) for rank in ranks]

    def stands(self, checkpoint: int = 20, *, level: str = "full", uploading: bool = False) -> None:
        for number in self.numbers:
            position = Position(
                30, checkpoint, 5.0, checkpoint_level=level, uploading=uploading, phase="forward", still=0.0
            )
            self.story.says(number, position)

    def after(self, seconds: float, **stands: object) -> list[Verify]:
        """Let time pass; return the verifications that began so far."""
        self.story.now += seconds
        self.stands(**stands)  # type: ignore[arg-type]
        return self.story.all(Verify)

    def checkpoints(self) -> list[int]:
        """The step of each rank's newest checkpoint, as the agent knows it."""
        return [
            each.status(self.story.now)["checkpoint_step"] for each in self.story.machine._sessions.every()
        ]

    def ends(self, status: str, **facts: str) -> None:
        begun = self.story.all(Verify)[-1]
        self.story.on(Verified(begun.number, status, begun.step, **facts))


def test_the_newest_checkpoint_is_read_again_on_the_schedule() -> None:
    run = Run()
    assert run.after(HOUR / 2) == []
    assert [(each.run_id, each.store, each.step) for each in run.after(HOUR)] == [("run", "file:///s", 20)]
    assert len(run.after(HOUR)) == 1, "one at a time"
    run.ends("sound", checkpoint="000000020-0001-0000")
    assert len(run.after(HOUR / 2)) == 1
    assert [each.step for each in run.after(HOUR, checkpoint=40)] == [20, 40]


@pytest.mark.parametrize("every", [None, HOUR])
def test_only_the_machine_of_the_first_rank_verifies_and_only_if_it_is_asked_to(every: float | None) -> None:
    assert Run(ranks=(1,)).after(2 * HOUR) == []
    assert bool(Run(every=every).after(2 * HOUR)) == (every is not None)


def test_it_waits_for_a_full_checkpoint_and_for_the_end_of_an_upload() -> None:
    run = Run()
    assert run.after(2 * HOUR, checkpoint=-1) == []
    assert run.after(1, level="weights") == []
    assert run.after(1, uploading=True) == []
    assert len(run.after(1)) == 1
    run.after(1, uploading=True)
    run.after(1, uploading=True)
    run.after(1)
    assert [each.paused for each in run.story.all(PauseVerification)] == [True, False]


def test_a_notice_ends_it_at_once_and_it_begins_again_when_training_goes_on() -> None:
    run = Run()
    run.after(2 * HOUR)
    actions = run.story.notice()
    assert [type(each) for each in actions if isinstance(each, StopVerification)] == [StopVerification]
    assert run.story.sent(Preempt), "the notice goes first"
    assert run.after(5.0) == run.story.all(Verify)[:1], "none while it is active"
    run.ends("damaged", detail="it came too late")
    run.story.gone()
    assert run.story.sent(CheckpointDamaged) == []
    assert len(run.after(HOUR)) == 2


def test_none_runs_when_training_is_over() -> None:
    run = Run()
    run.after(2 * HOUR)
    run.story.ends(0)
    assert len(run.story.all(StopVerification)) == 1
    assert run.story.code == 0


def test_damage_is_an_error_with_its_name_and_the_next_checkpoint_is_written_in_full() -> None:
    run = Run(ranks=(0, 1))
    run.after(2 * HOUR)
    run.ends(
        "damaged",
        checkpoint="000000020-0001-0000",
        detail="a.safetensors: CRC32 differs",
        objects="run/a b/",
    )
    (error,) = [each for each in run.story.all(Log) if each.level == logging.ERROR]
    assert "checkpoint 000000020-0001-0000 of run run in file:///s is DAMAGED" in error.text
    assert "a.safetensors: CRC32 differs" in error.text
    damage = CheckpointDamaged("000000020-0001-0000", 20, "a.safetensors: CRC32 differs", "run/a b/")
    assert run.story.sent(CheckpointDamaged) == [(number, damage) for number in run.numbers]
    assert run.checkpoints() == [-1, -1], "the agent does not count on it either"
    (session, _) = run.story.machine._sessions.every()
    assert session.status(run.story.now)["damaged_checkpoint"] == "000000020-0001-0000"
    for number in run.numbers:
        run.story.says(number, damage)  # each rank tells of it in turn
    assert len([each for each in run.story.all(Log) if each.level == logging.ERROR]) == 1
    run.stands(40)
    assert session.status(run.story.now)["damaged_checkpoint"] is None
    status = run.story.machine.verification.status(run.story.now + 60)
    assert status is not None
    assert (status["status"], status["step"], status["age"]) == ("damaged", 20, 60.0)


@pytest.mark.parametrize(("checkpoint", "status"), [(20, "damaged"), (40, "unknown")])
def test_a_checkpoint_without_an_object_is_damaged_unless_a_newer_one_replaced_it(
    checkpoint: int, status: str
) -> None:
    run = Run()
    run.after(2 * HOUR)
    run.after(1, checkpoint=checkpoint)
    run.ends("partial", detail="rank 0 has no manifest")
    found = run.story.machine.verification.status(run.story.now)
    assert found is not None
    assert found["status"] == status
    assert bool(run.story.sent(CheckpointDamaged)) == (status == "damaged")


def test_an_unknown_verdict_is_a_warning_and_is_tried_again_soon() -> None:
    run = Run()
    run.after(2 * HOUR)
    run.ends("unknown", detail="the store does not answer")
    assert any("the store does not answer" in each.text for each in run.story.all(Log))
    assert run.story.sent(CheckpointDamaged) == []
    assert len(run.after(601)) == 2


def test_damage_that_a_process_finds_is_an_error_once_and_its_run_has_no_such_checkpoint() -> None:
    """By its prune, say. The same run in another store, and a newer checkpoint, stay what they are."""
    run = Run(ranks=(0, 1), every=None)
    other = run.story.opens(200, store="file:///other")
    run.stands(20)
    run.story.says(run.numbers[1], Position(30, 40, 5.0))
    run.story.says(other, Position(30, 20, 5.0))
    damage = CheckpointDamaged("000000020-0001-0000", 20, "an object is missing")
    for number in run.numbers:
        run.story.says(number, damage)
    (error,) = [each for each in run.story.all(Log) if each.level == logging.ERROR]
    assert (
        "checkpoint 000000020-0001-0000 of run run in file:///s is DAMAGED: an object is missing"
        in error.text
    )
    assert run.checkpoints() == [-1, 40, 20]
    assert run.story.sent(CheckpointDamaged) == [], "the ranks tell each other"
    run.story.says(other, damage)
    assert run.checkpoints() == [-1, 40, -1]
