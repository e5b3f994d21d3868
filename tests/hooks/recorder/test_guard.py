"""A script under a plan: whatever it names, the plan's store and run id hold, and it ends where the plan ends."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from spotguard.hooks.control.callback import on_notice
from spotguard.hooks.recorder.plan import VARIABLE, Action
from spotguard.prove.runner import Ground, Life, Runner, write_startup
from spotguard.providers.clock import SystemClock

#: Names a store, a run, another run to begin from, and a stage.
SCRIPT = """
import os, pathlib
import torch
import spotguard

os.environ["SPOTGUARD_STAGE"] = "{outside}/stage"
os.environ["SPOTGUARD_STORE"] = "file://{outside}/variable"
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
guard = spotguard.register("file://{outside}/store", run_id="real", model=model, optimizer=optimizer)
try:
    for _ in range(guard.restore() or guard.restore(run_id="base", step=5), 100):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        guard.step()
finally:
    pathlib.Path("cleaned").touch()
"""


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    for name in ("job", "series", "series/work"):
        (tmp_path / name).mkdir()
    write_startup(tmp_path / "startup")
    return Ground(
        folder=tmp_path / "series",
        original=tmp_path / "job",
        workdir=tmp_path / "series" / "work",
        store=(tmp_path / "series" / "store").as_uri(),
        run_id="prove-preempted",
        startup=tmp_path / "startup",
    )


@pytest.mark.torch
def test_the_plans_store_and_run_hold_and_the_script_ends_in_order(ground: Ground, tmp_path: Path) -> None:
    """Preempted and resumed; of what the script names nothing comes into being."""
    pytest.importorskip("torch")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    (ground.workdir / "train.py").write_text(SCRIPT.format(outside=tmp_path / "outside"))
    runner = Runner([sys.executable, "train.py"], env, 5, 100.0, tmp_path, SystemClock())

    first = runner.live(ground, "first", Action("preempt", 2, "forward"))
    assert (first.taken, first.returncode, first.began) == (True, 75, 0), first.last_words
    assert (ground.workdir / "cleaned").exists()
    second = runner.live(ground, "second", None)

    assert (second.began, second.last, second.failed) == (2, 5, "")
    assert not (tmp_path / "outside").exists()
    assert sorted(path.name for path in (ground.folder / "store").iterdir()) == ["prove-preempted"]
    assert [life.records[0].said for life in (first, second)] == [f"file://{tmp_path}/outside/store real"] * 2
    _looks(first, second)


@pytest.mark.torch
def test_a_save_that_waits_is_at_the_boundary_in_front_of_the_event(ground: Ground, tmp_path: Path) -> None:
    """Without an optimizer of torch's, a notice at a boundary would be saved at the next one, behind the event."""
    pytest.importorskip("torch")
    text = SCRIPT.format(outside=tmp_path / "outside")
    (ground.workdir / "train.py").write_text(text.replace(", optimizer=optimizer)", ")"))
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    runner = Runner([sys.executable, "train.py"], env, 5, 100.0, tmp_path, SystemClock())
    first = runner.live(ground, "first", Action("preempt", 2))
    assert (first.taken, first.last) == (True, 1), "the step that was to be saved is its last"


def _looks(first: Life, second: Life) -> None:
    """The first one has asked for another run, the second one has not had to; each has written what it saw."""
    assert (first.records[0].elsewhere, second.records[0].elsewhere) == ("base", "")
    assert (first.records[0].ended, second.records[0].ended) == ("own end", "steps")
    look = second.records[0].looks[3]
    assert [entry.what for entry in look.turn] == ["input", "loss", "step"]
    assert look.turn[2].whose == "optimizer"
    assert set(look.items["state"]) >= {"model.weight", "model.bias", "optimizer.group 0.lr"}
    assert set(look.items["generators"]) == {"python", "numpy", "torch"}


def test_a_function_for_the_notice_is_not_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody connects to the agent for it: what it saves, and where, is the user's."""
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind("agent.sock")
        agent.listen()
        agent.setblocking(False)
        monkeypatch.setenv("SPOTGUARD_SOCKET", str(tmp_path / "agent.sock"))
        monkeypatch.setenv(VARIABLE, "plan.json")
        on_notice(lambda notice: None)
        with pytest.raises(BlockingIOError):
            agent.accept()
