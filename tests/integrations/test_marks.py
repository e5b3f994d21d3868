"""Marks in real trackers, read back by what reads the tracker's data: each event once, whatever ended the process before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.integrations.frameworks import PROGRAMS, Training, differences, environment

# Each life of a training loads torch and a tracker: ten of them beside other tests take minutes.
pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(900)]

TRACKERS = ["tensorboard", "wandb", "mlflow"]


def read(training: Training, tracker: str, case: str = "") -> list[tuple[str, int, Any]]:
    """All that the tracker has: name, step and value."""
    data = training.folder / f"cut-{case or tracker}"
    words = [environment("marks"), PROGRAMS / "read_marks.py", tracker, data]
    done = subprocess.run(
        [str(word) for word in words], env=training.env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return [(name, step, value) for name, step, value in json.loads(done.stdout)]


def numbers(rows: list[tuple[str, int, Any]], kind: str, name: str) -> list[tuple[int, float]]:
    return sorted((step, value) for each, step, value in rows if each == f"spotguard/{kind}/{name}")


def texts(rows: list[tuple[str, int, Any]], kind: str) -> list[str]:
    """The sentences about this kind of event. MLflow has the newest one, as a tag."""
    return [str(value) for name, _, value in rows if name in (f"spotguard/{kind}", f"spotguard/{kind}/text")]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The result of a run without spotguard, and so without marks."""
    return Training("marks", "marked.py", "tensorboard", tmp_path_factory.mktemp("plain")).plain()


@pytest.mark.parametrize("tracker", TRACKERS)
def test_each_event_is_marked_once_at_its_step(tracker: str, plain: Any, tmp_path: Path) -> None:
    training = Training("marks", "marked.py", tracker, tmp_path)
    resumed, lives = training.cut("step:7", "kill:12")
    assert differences(plain, resumed) == []
    assert lives == 3
    rows = read(training, tracker)
    assert numbers(rows, "preempted", "preemptions") == [(7, 1)]
    assert [step for step, _ in numbers(rows, "preempted", "seconds_to_commit")] == [7]
    assert [step for step, _ in numbers(rows, "preempted", "save_seconds")] == [7]
    ((step, nbytes),) = numbers(rows, "preempted", "save_bytes")
    assert (step, nbytes > 1000) == (7, True)
    assert [step for step, _ in numbers(rows, "checkpoint", "seconds")] == [10]
    assert [step for step, _ in numbers(rows, "checkpoint", "bytes")] == [10]
    # Two steps were trained after the checkpoint of step 10, as the note beside the tracker's data has it.
    assert numbers(rows, "resumed", "steps_lost") == [(7, 0), (10, 2)]
    assert numbers(rows, "resumed", "preemptions") == [(7, 1), (10, 1)]
    assert numbers(rows, "resumed", "attempt") == [(7, 2), (10, 3)]
    if tracker == "tensorboard":  # `purge_step` hides what is trained again, and no mark
        assert [step for name, step, _ in rows if name == "loss"] == list(range(15))
    assert [name for name, _, _ in rows if name == "preempting"] == ["preempting"] * (tracker == "wandb")
    (text,) = texts(rows, "preempted")
    assert "preempted at step 7 by a test notice from spotguard.testing" in text
    assert "resumed from step 10 in attempt 3, after an end without a notice: at least 2 steps lost" in texts(
        rows, "resumed"
    )


@pytest.mark.parametrize("case", ["tensorboard-hangs", "tensorboard-raises", "wandb-raises", "mlflow-hangs"])
def test_a_tracker_that_fails_costs_no_checkpoint(case: str, plain: Any, tmp_path: Path) -> None:
    """The first life commits, and exits as without marks. The next one marks what the first could not."""
    training = Training("marks", "marked.py", case, tmp_path)
    ended = training.run("cut", str(tmp_path / "store"), "step:7")
    assert ended.returncode == 75, ended.stderr
    (marker,) = tmp_path.glob("store/marked/checkpoints/*/COMMIT.json")
    assert "emergency" in marker.read_text()
    assert ended.stderr.count("spotguard cannot write its marks") == ("raises" in case)
    resumed, lives = training.cut("step:7")
    assert (differences(plain, resumed), lives) == ([], 1)
    tracker = case.partition("-")[0]
    rows = read(training, tracker)
    assert numbers(rows, "preempted", "preemptions") == [(7, 1)]
    assert len(numbers(rows, "preempted", "seconds_to_commit")) == 1
    assert numbers(rows, "resumed", "steps_lost") == [(7, 0)]


def test_under_the_agent_a_preemption_is_marked_before_the_command_ends(tmp_path: Path) -> None:
    training = Training("marks", "marked.py", "tensorboard", tmp_path)
    store, python = tmp_path / "store", str(environment("marks"))
    words = [python, str(PROGRAMS / "marked.py"), str(tmp_path / "cut"), "tensorboard", str(store), "term:7"]
    run = [
        python,
        "-m",
        "spotguard",
        "run",
        "--provider",
        "none",
        "--run-id",
        "marked",
        "--store",
        store.as_uri(),
    ]
    ended = subprocess.run(
        [*run, "--", *words],
        env=training.env | {"XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=300, cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 75, ended.stderr
    rows = read(training, "tensorboard")
    assert numbers(rows, "preempted", "preemptions") == [(7, 1)]
    (text,) = texts(rows, "preempted")
    assert "preempted at step 7 by a signal notice from SIGTERM" in text


@pytest.mark.parametrize("trainer", ["lightning", "transformers"])
def test_a_trainer_that_logs_already_is_marked_by_its_adapter(trainer: str, tmp_path: Path) -> None:
    training = Training("marks", "marked.py", trainer, tmp_path)
    plain = training.plain()
    resumed, lives = training.cut("step:7")
    assert (differences(plain, resumed), lives) == ([], 2)
    rows = read(training, "tensorboard", trainer)
    assert numbers(rows, "preempted", "preemptions") == [(7, 1)]
    assert numbers(rows, "resumed", "steps_lost") == [(7, 0)]


def test_importing_spotguard_loads_no_tracker() -> None:
    code = "import sys, spotguard; print(*{'torch', 'wandb', 'mlflow', 'tensorboard'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == ""
