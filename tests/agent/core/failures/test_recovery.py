"""What follows a failure, by its class: `--recover`, and `--max-restarts` for the classes without a rule."""

from __future__ import annotations

import logging
import signal
from dataclasses import replace
from typing import Any

import pytest

from spotguard.agent.actions import ExcludeMachine, KillGroup, Launch, Log, ReportEvent
from spotguard.agent.config.parsers import recover
from spotguard.hooks.ipc.protocol import Position, TrainingFailed
from tests.fakes.story import Story


def job(rules: str, max_restarts: int = 0, **policy: Any) -> Story:
    return Story(recover=recover("--recover", rules), max_restarts=max_restarts, **policy)


def fails(story: Story, kind: str, step: int = 1, message: str = "m") -> None:
    """A start fails, and the pause before the next one passes."""
    session = story.opens(story.pid)
    if kind != "killed":
        story.says(session, TrainingFailed(kind, "E", message, "x", "other", "f", step, stays=kind == "data"))
    story.ends(-signal.SIGKILL if kind == "killed" else 1)
    story.pause()


def starts(story: Story) -> int:
    return len(story.all(Launch))


def test_a_class_has_restarts_of_its_own() -> None:
    story = job("network=restart:2,killed=restart:1")
    for kind in ("network", "killed", "network"):
        fails(story, kind)
    assert (starts(story), story.machine.restarts, story.machine.finished) == (4, 3, False)
    assert [each.failure for each in story.all(Launch)] == ["", "network", "killed", "network"]
    fails(story, "network")
    assert (starts(story), story.code) == (4, 1)
    assert any(
        each.text == "the 2 times of --recover network=restart:2 are used up" and each.level == logging.ERROR
        for each in story.all(Log)
    )


def test_the_other_classes_share_max_restarts() -> None:
    story = job("network=restart:1", max_restarts=2)
    for kind in ("disk-full", "network", "killed"):
        fails(story, kind)
    assert (starts(story), story.machine.finished) == (4, False)
    fails(story, "host-memory")
    assert story.code == 1


def test_failures_of_earlier_attempts_count() -> None:
    """They may have run under other agents, on other machines."""
    story = job("network=restart:3,gpu=leave")
    (first,) = story.all(Launch)
    assert first.rules == {"network": ("restart", 0), "gpu": ("leave", 0)}
    story.says(story.opens(story.pid), Position(5, failures={"network": 1, "program": 4}))
    for _ in range(2):
        fails(story, "network")
    assert [each.rules["network"] for each in story.all(Launch)][1:] == [("restart", 2), ("restart", 3)]
    fails(story, "network")
    assert (starts(story), story.code) == (3, 1)


@pytest.mark.parametrize("told", [{"network": -1}, {"network": True}, {"network": "9"}, {"network": 9.5}])
def test_counts_that_cannot_be_true_are_passed_over(told: dict[str, Any]) -> None:
    story = job("network=restart:1")
    story.says(story.opens(story.pid), Position(5, failures=told))
    fails(story, "network")
    assert starts(story) == 2


def test_starts_that_complete_no_step_follow_each_other_ever_more_slowly() -> None:
    story = job("stall=stop", max_restarts=99)
    pauses = []
    for _ in range(9):
        story.ends(1)
        pauses.append(story.pause())
    assert pauses == [0, 1, 2, 4, 8, 16, 32, 60, 60]
    trains(story, 8, 9)
    story.ends(1)
    assert story.pause() == 0
    story.says(story.opens(story.pid), Position(9))
    story.ends(1)
    assert story.pause() == 0, "it is the first in a row again"


def test_a_notice_in_the_pause_before_a_start_is_waited_out() -> None:
    story = job("stall=stop", max_restarts=99)
    for _ in range(8):
        story.ends(1)
        story.pause()
    story.ends(1)
    assert (story.machine.phase, starts(story)) == ("restarting", 9)
    story.notice(30.0)
    assert story.pause() == 60, "the longer of both"
    assert (starts(story), story.code) == (9, 75)


def test_sigterm_ends_the_pause_before_a_start() -> None:
    story = job("stall=stop", max_restarts=99)
    story.ends(1)
    story.ends(1)
    story.signal(signal.SIGTERM)
    assert (starts(story), story.code) == (2, 75)


def test_values_that_are_not_finite_start_nothing_again_by_themselves() -> None:
    story = job("network=restart", max_restarts=9)
    fails(story, "nan")
    assert (starts(story), story.code) == (1, 1)
    assert any("--recover nan=back starts it before that data" in each.text for each in story.all(Log))


def skips(story: Story) -> list[str]:
    return [each.skip for each in story.all(Launch)]


def trains(story: Story, began: int, newest: int, good: int | None = None) -> None:
    """A start restores a step, and tells its newest checkpoint, and the newest one that is not suspect."""
    session = story.opens(story.pid)
    story.says(session, Position(began, checkpoint_step=began, good_step=began))
    story.says(session, Position(newest, checkpoint_step=newest, good_step=newest if good is None else good))
    story.closes(session)


def test_a_run_goes_back_behind_the_data_of_the_failed_step() -> None:
    story = job("nan=back:1")
    fails(story, "nan", step=811)
    assert [(each.failure, each.skip) for each in story.all(Launch)] == [("", ""), ("nan", "run:812")]
    assert any("back 1 of 1 for nan" in each.text for each in story.all(Log))
    fails(story, "nan", step=900)
    assert (starts(story), story.code) == (2, 1)


def test_skipped_steps_are_skipped_again_until_a_good_checkpoint_is_behind_them() -> None:
    """Bad data may come twice between two checkpoints, and another failure between."""
    story = job("nan=back:9,network=restart")
    trains(story, 8, 8)
    fails(story, "nan", step=10)
    trains(story, 8, 8)
    fails(story, "network", step=9)
    trains(story, 8, 9, good=8)
    session = story.opens(story.pid)
    story.says(session, Position(8, checkpoint_step=8))
    story.says(session, TrainingFailed("nan", "E", "m", "x", "other", "other", 10))
    story.ends(1)
    assert skips(story) == ["", "run:11", "run:11", "run:14"]
    trains(story, 8, 12)
    fails(story, "network", step=13)
    assert skips(story)[4:] == [""]


def test_a_good_checkpoint_between_the_last_position_and_the_error_is_behind_the_data() -> None:
    """Positions come every 2 s: the error itself says which checkpoint the next start restores."""
    story = job("nan=back:9")
    for good in (-1, -1, 11):
        session = story.opens(story.pid)
        story.says(session, Position(8, checkpoint_step=8, good_step=8))
        step, kind = 12, "nan"
        story.says(session, TrainingFailed(kind, "E", "m", "x", "other", "f", step, good_step=good))
        story.ends(1)
        story.pause()
    assert skips(story) == ["", "run:13", "run:18", "run:13"]


def test_below_a_launcher_that_restarts_the_last_error_counts() -> None:
    story = job("nan=back", launcher_restarts=True)
    for attempt, step in ((1, 10), (2, 50)):
        session = story.opens(story.pid, rank=attempt)
        story.says(session, Position(step, attempt=attempt))
        story.says(session, TrainingFailed("nan", "E", "m", "x", "other", "f", step))
    story.ends(1)
    assert skips(story) == ["", "run:51"]


def attempts(story: Story, *errors: TrainingFailed) -> None:
    """A launcher starts its rank again by itself, and each attempt ends by its error."""
    for attempt, error in enumerate(errors, 1):
        session = story.opens(500 + attempt)
        story.says(session, Position(error.step, attempt=attempt))
        story.says(session, error)
        story.closes(session)


def stays(kind: str = "data", step: int = 7, fingerprint: str = "f", *, stays: bool = True) -> TrainingFailed:
    return TrainingFailed(kind, "E", "m", "x", "other", fingerprint, step, stays=stays)


def test_a_launcher_that_starts_into_the_same_error_twice_is_ended() -> None:
    """It would do so as often as its own option allows, and each time costs a start."""
    story = job("data=restart:5", max_restarts=5, launcher_restarts=True)
    attempts(story, stays(), stays())
    assert story.all(KillGroup) == [KillGroup()]
    logged = [each.text for each in story.all(Log)]
    assert any(text.startswith("training failed: rank 0 (pid 502) at step 7") for text in logged)
    assert any("the same error at the same step" in text for text in logged)
    (incident,) = [each for each in story.all(ReportEvent) if each.kind == "failure"]
    assert incident.facts["repeats"] is True
    story.ends(-signal.SIGKILL)
    story.until(story.now + 5)
    assert (starts(story), story.code) == (1, 1)  # and not 137, which a scheduler takes for a lack of memory


def test_a_sigterm_while_a_command_that_was_killed_for_a_failure_ends_changes_no_exit_code() -> None:
    story = job("data=restart:5", max_restarts=5, launcher_restarts=True)
    attempts(story, stays(), stays())
    assert story.killed
    story.signal(signal.SIGTERM)
    story.ends(-signal.SIGKILL)
    story.until(story.now + 5)
    assert (starts(story), story.code) == (1, 1)


def test_a_command_that_was_killed_for_a_failure_does_not_start_again_for_another_machines_notice() -> None:
    story = job("data=restart:5", max_restarts=5, launcher_restarts=True)
    attempts(story, stays(), stays())
    session = story.opens(503)
    story.called(session)
    story.closes(session)
    story.ends(-signal.SIGKILL)
    story.until(story.now + 5)
    assert (starts(story), story.code) == (1, 1)


@pytest.mark.parametrize("before", ["on another machine", "in the command's start before"])
def test_a_launcher_that_starts_into_the_error_of_the_attempt_before_is_ended(before: str) -> None:
    """The process has it from the store, or this agent from the command that it has started before."""
    story, error = job("data=restart:5", max_restarts=5, launcher_restarts=True), stays()
    if before == "on another machine":
        error = replace(error, repeats=True)
    else:
        attempts(story, error)
        story.ends(1)
        story.until(story.now + 5)
        assert starts(story) == 2
    killed = len(story.all(KillGroup))
    session = story.opens(510)
    story.says(session, Position(7, attempt=2))
    story.says(session, error)
    assert len(story.all(KillGroup)) == killed
    story.closes(session)
    assert len(story.all(KillGroup)) == killed + 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(stays(), stays(step=8), id="another step"),
        pytest.param(stays(), stays(fingerprint="g"), id="another error"),
        pytest.param(stays(stays=False), stays(stays=False), id="an error that may pass"),
        pytest.param(stays("nan"), stays("nan"), id="an error that other data avoids"),
    ],
)
def test_a_launcher_whose_error_may_not_come_again_goes_on(
    first: TrainingFailed, second: TrainingFailed
) -> None:
    story = job("nan=back", launcher_restarts=True)
    attempts(story, first, second)
    assert story.all(KillGroup) == []


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_launcher_is_ended_whichever_rank_tells_the_error_of_all_first(order: tuple[int, int]) -> None:
    story = job("nan=back", launcher_restarts=True)
    for attempt, told in ((1, (0, 1)), (2, order)):
        sessions = [story.opens(500 + 10 * attempt + rank, rank=rank, world=2) for rank in (0, 1)]
        for each in sessions:
            story.says(each, Position(7, attempt=attempt))
        for rank in told:
            story.says(sessions[rank], stays(fingerprint=f"of rank {rank}"))
        for each in sessions:
            story.closes(each)
    assert story.all(KillGroup) == [KillGroup()]


def test_a_launcher_is_not_ended_while_the_rank_with_the_error_saves() -> None:
    story = job("nan=back", launcher_restarts=True)
    attempts(story, stays())
    session = story.opens(600)
    story.says(session, Position(7, attempt=2))
    story.says(session, stays())
    assert story.all(KillGroup) == []
    story.closes(session, alive=True)
    assert story.all(KillGroup) == []
    story.closes(session)
    assert story.all(KillGroup) == [KillGroup()]


def test_a_later_attempt_of_a_launcher_s_is_not_ended_for_errors_of_earlier_ones() -> None:
    """A drill may keep the launcher from being ended until its next attempt is past that step."""
    story = job("data=restart:5", launcher_restarts=True)
    attempts(story, stays())
    session = story.opens(502)
    story.says(session, Position(7, attempt=2))
    other = story.opens(700, run="other")
    story.asks()
    story.says(session, stays())
    story.closes(session)
    story.says(story.opens(503), Position(8, attempt=3))
    story.commits(other)
    assert story.machine.preemption is None
    assert story.all(KillGroup) == []


def test_a_run_leaves_no_machine_for_an_error_that_it_met_on_the_one_before() -> None:
    """The process knows that from the store. An error that may pass is tried again."""
    for kind, stays, code in (("data", True, 1), ("network", False, 75)):
        story = job(f"{kind}=leave")
        story.says(
            story.opens(story.pid), TrainingFailed(kind, "E", "m", "x", "other", "f", 1, stays, repeats=True)
        )
        story.ends(1)
        assert story.code == code


def test_a_run_leaves_no_more_often_than_its_rule_allows() -> None:
    """Else a fault of the program would chase the job from machine to machine."""
    story = job("gpu=leave:2")
    story.says(story.opens(story.pid), Position(5, failures={"gpu": 2}))
    fails(story, "gpu")
    assert (starts(story), story.code) == (1, 1)


@pytest.mark.parametrize(("rule", "code"), [("gpu=stop", 1), ("gpu=leave", 75)])
def test_a_class_may_end_the_run(rule: str, code: int) -> None:
    story = job(rule, max_restarts=9)
    fails(story, "gpu")
    assert (starts(story), story.code) == (1, code)
    said = [each.text for each in story.all(Log)]
    assert any("exclude this machine" in text for text in said) == (code == 75)


@pytest.mark.parametrize(
    ("kind", "excluded"),
    [("gpu", [ExcludeMachine("", "gpu")]), ("killed", [ExcludeMachine("", "killed")]), ("peer-lost", [])],
)
def test_the_machine_that_is_left_is_named_unless_another_one_failed(
    kind: str, excluded: list[ExcludeMachine]
) -> None:
    """For whoever starts the job again, if somebody reads it."""
    story = Story(recover=recover("--recover", f"{kind}=leave"), excludes=True)
    fails(story, kind)
    assert story.all(ExcludeMachine) == excluded
    text = next(each.text for each in story.all(Log) if "goes on elsewhere" in each.text)
    assert ("named in --exclude-file" in text) == bool(excluded)
    assert ("not known here" in text) == (not excluded)


BROKEN = "CUDA error: uncorrectable ECC error encountered"


def test_the_node_of_a_pod_is_labelled_by_the_class_of_the_failure() -> None:
    """In Kubernetes nobody reads a file."""
    story = Story(recover=recover("--recover", "gpu=leave"), node="n7")
    fails(story, "gpu", message=BROKEN)
    assert (story.all(ExcludeMachine), story.code) == ([ExcludeMachine("", "gpu", broken=True)], 75)
    text = next(each.text for each in story.all(Log) if "goes on elsewhere" in each.text)
    assert "node n7 is labelled" in text
    assert "exclude-file" not in text


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("gpu", "CUDA error: device-side assert triggered"),
        ("gpu", "CUDA error: no kernel image is available for execution on the device"),
        ("gpu", "CUDA error: invalid configuration argument"),
        ("gpu", "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"),
        ("program", BROKEN),
        ("killed", ""),
    ],
)
@pytest.mark.parametrize("excludes", [True, False])
def test_a_class_that_a_program_can_cause_everywhere_labels_no_node(
    kind: str, message: str, excludes: bool
) -> None:
    """Each agent decides alone: a wrong build would label all nodes of the job until a person acts."""
    story = Story(recover=recover("--recover", f"{kind}=leave"), node="n7", excludes=excludes)
    fails(story, kind, message=message)
    assert story.all(ExcludeMachine) == [ExcludeMachine("", kind)] * excludes
    text = next(each.text for each in story.all(Log) if "goes on elsewhere" in each.text)
    assert "node n7 is not labelled" in text
    assert story.code == 75


@pytest.mark.parametrize("rule", ["gpu=stop", "gpu=restart", "network=leave"])
def test_no_machine_is_named_that_the_job_does_not_leave(rule: str) -> None:
    story = Story(recover=recover("--recover", rule), excludes=True)
    fails(story, "gpu")
    assert story.all(ExcludeMachine) == []


def test_an_error_that_would_come_again_is_not_restarted_by_a_rule_either() -> None:
    story = job("data=restart:9")
    fails(story, "data")
    fails(story, "data")
    assert (starts(story), story.code) == (2, 1)


def test_a_failure_without_a_cause_has_no_rule() -> None:
    story = job("program=restart")
    story.ends(3)
    assert (starts(story), story.code) == (1, 3)
