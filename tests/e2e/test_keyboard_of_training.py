"""Training under `spotguard run` at a terminal: Ctrl-C, and a terminal that goes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.desk import Desk
from tests.tiers import few_fast

pytest.importorskip("torch")

pytestmark = pytest.mark.wholepath

#: Trains until it is told to end, and says how it ended.
TRAINING = """
import os, threading, torch, spotguard
def say(line): os.write(int(os.environ["REPORT"]), f"train: {line}\\n".encode())
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
guard = spotguard.register(model=model, optimizer=optimizer)
guard.restore()
pause, begins = threading.Event(), iter([os.getpid()])
try:
    while True:
        model(torch.ones(4)).sum().backward()
        optimizer.step()
        guard.step()
        any(say(pid) for pid in begins)
        pause.wait(0.01)
except BaseException as error:
    say(type(error).__name__)
    raise
"""


@pytest.fixture
def sit(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    desks = []

    def make(pipeline: str, training: str = TRAINING) -> Desk:
        options = ["--provider", "none", "--run-id", "keys", "--store", str(tmp_path)]
        desk = Desk(training, pipeline, [sys.executable, "-m", "spotguard", "run", *options, "--"])
        desks.append(desk)
        desk.order("run")
        desk.command = int(desk.report.until("train: ").split()[1])
        return desk

    yield make
    for desk in desks:
        desk.close()


def committed(folder: Path) -> int:
    return len(list(folder.glob("keys/checkpoints/*/COMMIT.json")))


@pytest.mark.parametrize(
    "pipeline", few_fast(['; echo "went on" >&"$REPORT"', "| cat"]), ids=["a script around it", "a pipe"]
)
def test_ctrl_c_saves_and_ends_as_by_hand(sit: Callable[..., Desk], tmp_path: Path, pipeline: str) -> None:
    """The shell sees a job that SIGINT ended, and leaves its loop; a start after it resumes at the last step."""
    desk = sit(pipeline)
    desk.type(b"\x03")
    desk.report.until("shell: killed 2")
    assert desk.heard("train: Preempted") == 1
    assert desk.heard("went on") == 0
    assert committed(tmp_path) == 1


@pytest.mark.slow
def test_ctrl_c_at_a_question_to_a_person_saves_and_interrupts_it(
    sit: Callable[..., Desk], tmp_path: Path
) -> None:
    """`input()` calls the handlers of signals twice: the message that lets Ctrl-C through has come with a signal of its own."""
    desk = sit("", TRAINING.replace("pause.wait(0.01)", "input()"))
    desk.type(b"\x03")
    desk.report.until("shell: killed 2")
    assert desk.heard("train: KeyboardInterrupt") == 1
    assert committed(tmp_path) == 1


def test_a_terminal_that_goes_costs_nothing(sit: Callable[..., Desk], tmp_path: Path) -> None:
    """The kernel's hang-up reaches the shell and the group in front; `run` writes to nobody."""
    desk = sit("")
    for end in (desk.slave, desk.keyboard):
        os.close(end)
    with pytest.raises(AssertionError, match="everybody is gone"):
        desk.report.until("nothing")
    desk.slave, desk.keyboard = os.pipe()
    assert desk.heard("train: Preempted") == 1
    assert committed(tmp_path) == 1
