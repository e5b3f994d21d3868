"""The commands that show and keep house, on a real store and on a real run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotguard.agent.ipc import control
from spotguard.cli import main
from tests.e2e.processes import eventually
from tests.fakes.report import TIMEOUT, Report

torch = pytest.importorskip("torch")

from tests.fakes.training import guarded  # noqa: E402 - after the skip

pytestmark = [pytest.mark.torch, pytest.mark.wholepath]

#: Trains until somebody ends it.
TRAINING = """
import os, threading, torch, spotguard
model = torch.nn.Linear(30, 20)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
guard = spotguard.register(model=model, optimizer=optimizer)
done = guard.restore()
os.write(int(os.environ["REPORT"]), b"training\\n")
while True:
    optimizer.zero_grad(); model(torch.ones(30)).sum().backward(); optimizer.step(); guard.step()
    threading.Event().wait(0.01)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one run and three checkpoints, of steps 2, 4 and 6; nobody writes to it again."""
    store = tmp_path_factory.mktemp("made") / "store"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "SPOTGUARD_EVERY": "off",
            "SLURM_JOB_ID": "4711",
            "SLURM_RESTART_COUNT": "2",
        }.items():
            patch.setenv(name, value)
        with guarded(store, {"model": torch.nn.Linear(30, 20)}, run_id="run-7") as guard:
            for step in range(guard.restore(), 6):
                guard.step()
                if step % 2:
                    guard.save()
    return store


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged and pruned."""
    return Path(shutil.copytree(made, tmp_path / "store"))


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main.main(words) == code, capsys.readouterr()
    return capsys.readouterr().out


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    return json.loads(said(capsys, *words, "--json", code=code))


def checkpoints(store: Path) -> list[Path]:
    """Newest first."""
    return sorted((store / "run-7/checkpoints").iterdir(), reverse=True)


def damage(checkpoint: Path) -> None:
    """Flip the last bit of its last object."""
    path = max(checkpoint.rglob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def test_ls_lists_newest_first(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    found = told(capsys, "ls", store.as_uri())["checkpoints"]
    assert [each["step"] for each in found] == [6, 4, 2]
    assert {(each["run_id"], each["status"], each["kind"]) for each in found} == {
        ("run-7", "complete", "manual")
    }
    lines = said(capsys, "ls", store.as_uri()).splitlines()
    assert [line.split()[0] for line in lines[1:]] == [">", "run-7", "run-7"], "one is what a restore takes"


def test_ls_says_what_is_not_whole(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    """A manifest gone, an object gone: each named, and the mark moves to what a restore would take."""
    newest, second, _ = checkpoints(store)
    next(newest.glob("00000-of-*.json")).unlink()
    next(second.rglob("*.safetensors")).unlink()
    found = told(capsys, "ls", store.as_uri())["checkpoints"]
    assert [each["status"] for each in found] == ["partial", "damaged", "complete"]
    assert said(capsys, "ls", store.as_uri()).splitlines()[3].split()[:3] == [">", "run-7", "2"]


def test_ls_of_an_empty_place(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert said(capsys, "ls", tmp_path.as_uri()).startswith("no checkpoint in file://")
    assert list(tmp_path.iterdir()) == []


def test_ls_of_a_run_that_is_not_there_names_those_that_are(
    capsys: pytest.CaptureFixture[str], store: Path
) -> None:
    said_of_it = said(capsys, "ls", store.as_uri(), "--run-id", "run-8")
    assert said_of_it.strip() == f"no checkpoint of run run-8 in {store.as_uri()}; there are runs run-7"


def test_inspect_shows_the_newest_whole_one(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    body = told(capsys, "inspect", store.as_uri())
    assert (body["step"], body["world"], body["level"]) == (6, 1, "full")
    shapes = {tensor["name"]: tensor["shape"] for tensor in body["tensors"]}
    assert shapes["model/weight"] == [20, 30]
    shown = said(capsys, "inspect", store.as_uri())
    assert "model/weight" in shown
    assert f"  1 rank, {len(body['objects'])} object" in shown
    next(checkpoints(store)[0].glob("00000-of-*.json")).unlink()
    assert told(capsys, "inspect", store.as_uri())["step"] == 4


def test_inspect_says_who_started_the_attempt(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    """Its record may be gone, and the checkpoint is one all the same."""
    assert told(capsys, "inspect", store.as_uri())["launchers"] == [
        {"name": "slurm", "job": "4711", "restarts": 2}
    ]
    line = "  attempt 1, started by slurm 4711, restart 2"
    assert line in said(capsys, "inspect", store.as_uri()).splitlines()
    (store / "run-7/attempts/0001.json").unlink()
    assert told(capsys, "inspect", store.as_uri())["launchers"] == []
    assert "started by" not in said(capsys, "inspect", store.as_uri())


def test_a_checkpoint_may_be_named_by_its_own_url(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    """As logs and outcomes show it, with or without the last slash; a run's URL works too."""
    url = checkpoints(store)[1].as_uri()
    for each in (url, f"{url}/"):
        assert told(capsys, "inspect", each)["step"] == 4
    assert told(capsys, "inspect", (store / "run-7").as_uri() + "/checkpoints")["step"] == 6
    assert told(capsys, "inspect", store.as_uri(), "--run-id", "run-7", "--step", "2")["step"] == 2


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (["--step", "5"], 1, "has no checkpoint of step 5: there are those of steps 6, 4, 2"),
        (["--run-id", "other"], 1, "has no checkpoint: there are runs run-7"),
    ],
)
def test_a_checkpoint_that_is_not_there(
    capsys: pytest.CaptureFixture[str], store: Path, words: list[str], code: int, line: str
) -> None:
    assert main.main(["inspect", store.as_uri(), *words]) == code
    assert line in capsys.readouterr().err


def test_several_runs_must_be_told_apart(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    shutil.copytree(store / "run-7", store / "run-8")
    assert main.main(["inspect", store.as_uri()]) == 2
    assert "pass --run-id with one of run-7, run-8" in capsys.readouterr().err


def test_verify_reads_every_byte(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    """A flipped bit is found, named, and fails the command, though an older one is whole."""
    assert said(capsys, "verify", store.as_uri()).startswith("complete run run-7, step 6")
    damage(checkpoints(store)[0])
    verdicts = told(capsys, "verify", store.as_uri(), code=1)["checkpoints"]
    assert [(each["step"], each["status"]) for each in verdicts] == [(6, "damaged"), (4, "complete")]
    assert "CRC32" in verdicts[0]["damage"][0]
    assert told(capsys, "verify", store.as_uri(), "--step", "4")["checkpoints"][0]["status"] == "complete"
    assert len(told(capsys, "verify", store.as_uri(), "--all", code=1)["checkpoints"]) == 3


def test_verify_passes_over_a_save_under_way(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    """It is no damage; a store with nothing else than that has nothing to restore."""
    for each in checkpoints(store)[:2]:
        next(each.glob("00000-of-*.json")).unlink()
    verdicts = told(capsys, "verify", store.as_uri())["checkpoints"]
    assert [each["status"] for each in verdicts] == ["partial", "partial", "complete"]
    next(checkpoints(store)[2].glob("00000-of-*.json")).unlink()
    assert "partial" in said(capsys, "verify", store.as_uri(), code=1)


def test_prune_keeps_the_newest(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    """First it only says so."""
    names = [path.name for path in checkpoints(store)]
    dry = told(capsys, "prune", store.as_uri(), "--keep", "1", "--dry-run")["runs"][0]
    assert (dry["kept"], dry["checked"], dry["deleted"]) == (names[:1], names[0], names[:0:-1])
    assert len(told(capsys, "ls", store.as_uri())["checkpoints"]) == 3
    assert "deleted 2 checkpoints" in said(capsys, "prune", store.as_uri(), "--keep", "1")
    assert [each["step"] for each in told(capsys, "ls", store.as_uri())["checkpoints"]] == [6]


def test_prune_never_takes_the_last_good_one(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    for each in checkpoints(store)[:2]:
        next(each.glob("00000-of-*.json")).unlink()
    assert said(capsys, "prune", store.as_uri(), "--keep", "1").endswith(checkpoints(store)[2].name + "\n")
    next(checkpoints(store)[2].glob("00000-of-*.json")).unlink()
    assert "nothing is deleted" in said(capsys, "prune", store.as_uri(), "--keep", "1")
    assert len(checkpoints(store)) == 3


class Run:
    """A guarded training that goes on until it is ended."""

    def __init__(self, folder: Path, script: str = TRAINING) -> None:
        self.report = Report()
        command = [sys.executable, "-m", "spotguard", "run", "--every", "off", "--run-id", "live"]
        self.process = subprocess.Popen(
            [*command, "--", sys.executable, "-c", script],
            cwd=folder,
            env={**os.environ, "REPORT": str(self.report.fd)},
            pass_fds=[self.report.fd],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.report.hand_over()
        try:
            self.report.until("training")
        except BaseException:
            self.end()  # or it would be there for the tests that follow
            raise

    def end(self) -> None:
        for signum in (signal.SIGTERM, signal.SIGINT):  # the second one ends it at once
            if self.process.poll() is None:
                self.process.send_signal(signum)
        self.process.communicate(timeout=TIMEOUT)
        self.report.close()


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    run.end()


@pytest.mark.slow  # `tests/e2e/test_drill` has both in the fast tier
def test_status_and_drill_on_a_live_run(
    capsys: pytest.CaptureFixture[str], live: Run, tmp_path: Path
) -> None:
    """Asked, drilled and asked again; then preempted by a drill to the end: 75, and nothing is guarded any more."""
    (agent,) = told(capsys, "status")["agents"]
    assert (agent["run_id"], agent["pid"]) == ("live", live.process.pid)
    assert len(agent["sessions"]) == 1
    assert "run live" in said(capsys, "status", "--run-id", "live")
    assert "COMMITTED" in said(capsys, "drill")
    drilled = told(capsys, "ls", (tmp_path / "spotguard-checkpoints").as_uri())["checkpoints"][0]["step"]
    assert "last drill" in " ".join(said(capsys, "status").split())
    assert live.process.poll() is None, "after a drill training goes on"
    # On a busy machine it may still stand at that step, and then a second save of it is none.
    eventually(lambda: live_step(capsys) > drilled, "a step after the drill")
    lines = said(capsys, "drill", "--preempt", "--window", "20", "--json").splitlines()
    assert json.loads(lines[-1])["outcome"]["code"] == 75
    assert live.process.wait(TIMEOUT) == 75
    assert "nothing is guarded here" in said(capsys, "status", code=1)
    found = told(capsys, "ls", (tmp_path / "spotguard-checkpoints").as_uri())["checkpoints"]
    assert [each["kind"] for each in found] == ["emergency", "emergency"]


@pytest.mark.slow
def test_a_run_whose_loop_is_wrong_is_green_nowhere(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Its checkpoints are committed, and each of them is of a step that was not trained."""
    body, _, step = TRAINING.partition("while True:\n")
    wrong = f"{body}while True:\n    guard.step()\n{step.replace('; guard.step()', '')}"
    live = Run(tmp_path, wrong)
    try:
        eventually(lambda: told(capsys, "status")["agents"][0]["sessions"][0]["misuse"], "what is wrong")
        session = told(capsys, "status")["agents"][0]["sessions"][0]
        assert session["misuse"].startswith(
            "guard.step() (<string>:9) comes before optimizer.step() (<string>:10)"
        )
        assert session["marked"] is True
        lines = said(capsys, "status").splitlines()
        assert [line.split()[0] for line in lines[1:]] == [
            "notices",
            "training",
            "WRONG",
            "what",
            "checkpoint",
            "saves",
        ]
        page = told(capsys, "doctor", code=1)
        failing = [each for each in page["checks"] if each["state"] == "fails"]
        assert [each["check"] for each in failing] == ["job", "verdict"]
        assert failing[0]["misuse"] == session["misuse"]
        last = json.loads(said(capsys, "drill", "--json", code=1).splitlines()[-1])
        assert (last["outcome"]["level"], last["verdict"]["fits"]) == ("full", True)
        assert last["verdict"]["advice"] == "call guard.step() at the end of the loop's body"
        assert live.process.poll() is None, "it is looked at, and goes on"
    finally:
        live.end()


@pytest.mark.slow
def test_an_edit_between_boundaries_is_seen_in_the_status(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    body, _, step = TRAINING.partition("while True:\n")
    live = Run(tmp_path, f"{body}while True:\n    model.weight.data[0] *= 0.9\n{step}")
    try:
        eventually(
            lambda: " at the next guard.step(): model/weight was changed in place" in said(capsys, "status"),
            "how it saves from now on",
        )
        assert "COMMITTED" in said(capsys, "drill")
    finally:
        live.end()


def live_step(capsys: pytest.CaptureFixture[str]) -> int:
    step: int = told(capsys, "status")["agents"][0]["sessions"][0]["step"]
    return step


def test_a_drill_with_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    """It could not be done, and nothing was said wrongly."""
    assert main.main(["drill"]) == 1
    assert "no spotguard runs here" in capsys.readouterr().err
    assert main.main(["drill", "--run-id", "gone"]) == 1
    assert capsys.readouterr().err.endswith("; `spotguard status` shows what runs here\n")


def test_status_watches_until_ctrl_c() -> None:
    """A line for each look; the only way out is no failure."""
    command = [sys.executable, "-m", "spotguard", "status", "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline()) == {"agents": []}
        watching.send_signal(signal.SIGINT)
        _, complaint = watching.communicate(timeout=TIMEOUT)
    assert (watching.returncode, complaint) == (0, "")


@pytest.mark.parametrize("mode", ["window", "callback"])
def test_a_drill_before_training_begins_is_refused_and_asks_for_nothing(
    mode: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to save yet, so none of it is lost. A function of its own has no steps."""
    session = {"run_id": "early", "step": -1, "mode": mode, "misuse": "", "attached": ""}
    asked: list[Path] = []

    def drill(path: Path, **_: Any) -> list[Any]:
        asked.append(path)
        return []

    monkeypatch.setattr(control, "status", lambda path: {"window": 30.0, "sessions": [session]})
    monkeypatch.setattr(control, "drill", drill)
    assert main.main(["drill", "--socket", "/run/x.sock"]) == 1
    refused = "spotguard: error: run early has not begun to train" in capsys.readouterr().err
    assert (refused, len(asked)) == (mode != "callback", mode == "callback")
