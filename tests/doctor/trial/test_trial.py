"""`spotguard doctor --trial` as a person types it, of real programs: its findings, its ends, and nothing left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from spotguard.agent.process import proctree
from spotguard.cli.main import main
from tests.e2e.processes import eventually
from tests.integrations import frameworks
from tests.tiers import few_fast

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.wholepath, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parent / "programs"
PLAIN = (sys.executable,)
REGISTERED = """
import torch, spotguard
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
guard = spotguard.register(model=model, optimizer=optimizer)
def train():
    optimizer.zero_grad()
    model(torch.ones(2)).sum().backward()
    optimizer.step()
"""


class Tried:
    """A trial that has ended: the exit code, and each check's last finding."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code, self.error = done.returncode, done.stderr
        body = json.loads(done.stdout)
        self.fits = body["fits"]
        self.checks: dict[str, Any] = {each["check"]: each for each in body["checks"]}

    def __getitem__(self, check: str) -> Any:
        return self.checks[check]


class Folders:
    """The user's directory, and the one for temporary files."""

    def __init__(self, tmp_path: Path) -> None:
        self.job, self.tmp = tmp_path / "job", tmp_path / "tmp"
        self.job.mkdir()
        self.tmp.mkdir()
        self.env = os.environ | {"TMPDIR": str(self.tmp), "OMP_NUM_THREADS": "1"}

    def words(self, *options: str, command: Sequence[str]) -> list[str]:
        ours = ("doctor", "--trial", "--json", "--provider", "none", *options)
        return [sys.executable, "-m", "spotguard", *ours, "--", *command]

    def content(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.job)): path.read_bytes()
            for path in self.job.rglob("*")
            if path.is_file()
        }


Try = Callable[..., Tried]


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


@pytest.fixture
def attempt(folders: Folders) -> Try:
    """Run a trial, and see that nothing of it is left."""

    def attempt(program: str, *options: str, launcher: Sequence[str] = PLAIN) -> Tried:
        text = program if "\n" in program else (PROGRAMS / f"{program}.py").read_text()
        (folders.job / "train.py").write_text(text)
        before = folders.content()
        done = subprocess.run(
            folders.words(*options, command=(*launcher, "train.py")),
            cwd=folders.job,
            env=folders.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert folders.content() == before
        assert nothing_left(folders)
        return Tried(done)

    return attempt


def nothing_left(folders: Folders) -> bool:
    """Whether no file of a trial is left, and no process that has its temporary directory in its environment."""
    mark = str(folders.tmp).encode()
    for pid in proctree.pids():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        assert mark not in environment, f"process {pid} is left"
    return not any(folders.tmp.iterdir())


def test_a_loop_is_measured_and_saved_as_at_a_notice(attempt: Try) -> None:
    tried = attempt("plain", "--steps", "8")
    assert (tried.code, tried.fits, tried.error) == (0, True, "")
    assert (tried["trial"]["state"], tried["trial"]["steps"], tried["trial"]["ranks"]) == ("ok", 8, 1)
    assert tried["trial"]["exit_code"] == 75, "it was ended as a notice ends it"
    assert 0 < tried["memory"]["peak_bytes"] < tried["memory"]["limit_bytes"]
    assert tried["device"]["devices"] == []
    assert 0 < tried["step"]["shortest_seconds"] <= tried["step"]["median_seconds"]
    assert (tried["loader"]["workers"], tried["loader"]["samples_per_second"] > 0) == (0, True)
    assert tried["state"]["registered"] == {"model": "Sequential", "optimizer": "AdamW"}
    assert tried["state"]["bytes"] == tried["save"]["bytes"] == tried["verdict"]["bytes"] > 400_000
    assert tried["save"]["background_blocked_seconds"] >= 0
    assert (tried["job"]["step"], tried["job"]["modes"]) == (8, ["window"])
    assert {cloud: one["fits"] for cloud, one in tried["windows"]["clouds"].items()} == {
        "aws": True,
        "gcp": True,
        "azure": True,
    }


@pytest.mark.slow
def test_the_users_own_store_and_run_stay_as_they_are(attempt: Try, folders: Folders) -> None:
    """Also if the trial names both."""
    store = folders.job / "kept"
    (folders.job / "train.py").write_text(f"{REGISTERED}\nfor _ in guard.steps(3): train()\nguard.save()\n")
    run = ("run", "--provider", "none", "--store", str(store), "--run-id", "mine", "--every", "off", "--")
    command = [sys.executable, "-m", "spotguard", *run, sys.executable, "train.py"]
    subprocess.run(command, cwd=folders.job, check=True, capture_output=True)
    assert (store / "mine" / "checkpoints").is_dir()
    tried = attempt("plain", "--steps", "4", "--store", str(store), "--run-id", "mine")
    assert (tried.code, tried["job"]["runs"]) == (0, ["mine"])


@pytest.mark.slow
def test_two_ranks_are_measured_together(attempt: Try) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    tried = attempt("ranks", launcher=torchrun)
    assert (tried.code, tried["trial"]["state"], tried["trial"]["ranks"]) == (0, "ok", 2)
    shares = tried["state"]["bytes_by_rank"]
    assert set(shares) == {"0", "1"}
    assert sum(shares.values()) == tried["save"]["bytes"] == tried["verdict"]["bytes"]
    assert tried["memory"]["processes"] >= 3, (
        "the launcher and two ranks, and the workers that a look has met"
    )
    assert tried["loader"]["workers"] == 1


@pytest.mark.slow
def test_a_trainer_of_transformers_is_measured(folders: Folders) -> None:
    program = frameworks.PROGRAMS / "hf.py"
    command = (str(frameworks.environment("transformers")), str(program), "out", "plain", "store")
    done = subprocess.run(
        folders.words("--steps", "8", command=command),
        cwd=folders.job,
        env=folders.env | {"PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    tried = Tried(done)
    assert (tried.code, tried["trial"]["state"]) == (0, "ok"), done
    assert tried["save"]["bytes"] > 0
    assert tried["loader"]["batches_per_second"] > 0
    assert nothing_left(folders)
    assert not any(folders.job.iterdir())


ENDS = [
    ("raise SystemExit\n", "it ended and never called spotguard.register", 0),
    (
        "\nimport nothing_of_this_name\n",
        "it failed before spotguard.register: exit code 1: ModuleNotFoundError",
        0,
    ),
    (f"{REGISTERED}guard.restore()\n", "it ended without a boundary: guard.step() was not called", 0),
    (f"{REGISTERED}guard.restore()\nwhile True: train()\n", "and guard.step() was not called", 0),
    (
        f"{REGISTERED}for step in guard.steps():\n    train()\n    if step == 4: raise ValueError('bad data')\n",
        "it failed after step 4: exit code 1: ValueError: bad data",
        4,
    ),
    (f"{REGISTERED}for _ in guard.steps(4): train()\n", "the command ended by itself before step 20", 4),
    ("import signal\nsignal.pause()\n", "it did not complete a step for 5 s, before it called", 0),
]


@pytest.mark.parametrize(("program", "found", "steps"), few_fast(ENDS))
def test_a_trial_that_comes_to_no_end_of_its_own_says_why(
    program: str, found: str, steps: int, attempt: Try
) -> None:
    hangs = "pause" in program
    tried = attempt(program, *(("--timeout", "5") if hangs else ()))
    assert found in tried["trial"]["found"]
    assert tried["trial"]["advice"]
    assert (tried["trial"]["steps"], tried["trial"]["state"]) == (
        steps,
        "warning" if "by itself" in found else "fails",
    )
    assert tried.code == (0 if "by itself" in found else 1)
    assert ("save" in tried.checks) == (steps > 0)
    assert tried.error == ""


@pytest.mark.slow
def test_the_limit_ends_a_slow_command_at_its_next_boundary(attempt: Try) -> None:
    program = f"{REGISTERED}import time\nfor _ in guard.steps():\n    train()\n    time.sleep(1.0)\n"
    tried = attempt(program, "--timeout", "40", "--steps", "500")
    assert "the limit of 40 s" in tried["trial"]["found"]
    assert (tried["trial"]["state"], tried["save"]["bytes"] > 0) == ("warning", True)


@pytest.mark.parametrize("signum", few_fast([signal.SIGINT, signal.SIGTERM]))
def test_an_interrupted_trial_leaves_nothing(signum: signal.Signals, folders: Folders) -> None:
    (folders.job / "train.py").write_text((PROGRAMS / "plain.py").read_text())
    words = folders.words("--steps", "1000000", command=(sys.executable, "train.py"))
    with subprocess.Popen(
        words,
        cwd=folders.job,
        env=folders.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as running:
        records = "spotguard-trial-*/trial/life-1/rank-0.jsonl"
        eventually(
            lambda: any(b'"step"' in path.read_bytes() for path in folders.tmp.glob(records)),
            "a step",
            pause=0.1,
        )
        os.kill(running.pid, signum)
        assert running.wait(100) in (128 + signum, -signum)
    assert nothing_left(folders)
    assert [*folders.content()] == ["train.py"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--trial"], "--trial trains a few steps of the command, which is missing"),
        (["--steps", "5", "--", "train"], "--steps is an option of a trial: add --trial"),
        (["--copy-limit", "5"], "--copy-limit is an option of a trial: add --trial"),
        (["--trial", "--steps", "2", "--", "train"], "--steps '2': expected a whole number from 3 up"),
        (["--trial", "--timeout", "1", "train"], "--timeout '1': expected 5 seconds or more"),
        (["--trial", "--link", "nowhere", "train"], "--link 'nowhere': expected a directory inside"),
        (["--trial", "--", "spotguard", "run", "train"], "doctor --trial guards the command by itself"),
    ],
)
def test_wrong_words_are_refused(
    words: list[str],
    error: str,
    folders: Folders,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folders.job)
    assert main(["doctor", *words]) == 2
    assert error in capsys.readouterr().err
