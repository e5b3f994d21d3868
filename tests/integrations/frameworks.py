"""Trainings of frameworks, each in the environment that `scripts/framework-env NAME` makes, cut and resumed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT

PROGRAMS = ROOT / "tests" / "integrations" / "programs"
#: The exit codes of a life that a notice, or SIGKILL, has ended.
ENDED = (75, -9)
#: The most lives of one training.
LIVES = 80
#: The most seconds of one.
LIFE = 300
#: The variables of a job of one rank, for a framework that asks for them.
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
LIVES_OF = Path(__file__).with_name("lives.py")


def table_of(name: str, program: str, folder: Path, limit: float) -> dict[str, str]:
    """The verdict of a program on each of its rows, run in the environment `name` for at most `limit` seconds: "exact", or else."""
    done = subprocess.run(
        [str(environment(name)), str(PROGRAMS / program), str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "SPOTGUARD_EVERY": "off"},
        capture_output=True,
        text=True,
        timeout=limit,
        check=True,
    )
    table: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return table


class Lives:
    """The process that has imported a program, and forks its lives."""

    def __init__(self, python: Path, program: Path, words: list[str], env: dict[str, str]) -> None:
        self.of = (python, program)
        self._process = subprocess.Popen(
            [str(each) for each in (python, LIVES_OF, program, *words)],
            env=env,
            start_new_session=True,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, life: dict[str, Any]) -> list[int]:
        """The exit codes of a life's ranks."""
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(life), file=self._process.stdin, flush=True)
        if not select.select([self._process.stdout], [], [], LIFE)[0]:
            close_lives()  # the next test has another process
            said = Path(life["said"]).read_text()
            raise AssertionError(f"a life of {self.of[1].name} takes more than {LIFE} s:\n{said}")
        return list(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process, and what it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


#: Of the last program that was asked for, for the tests that follow. One, because each takes half a GiB.
_kept: list[Lives] = []


def lives(python: Path, program: Path, words: list[str], env: dict[str, str]) -> Lives:
    if not _kept or _kept[0].of != (python, program):
        close_lives()
        _kept.append(Lives(python, program, words, env))
    return _kept[0]


def close_lives() -> None:
    while _kept:
        _kept.pop().close()


def environment(name: str) -> Path:
    """The Python of a framework's environment; the test is skipped by name where there is none."""
    python = ROOT / f".venv-{name}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"there is no .venv-{name}: scripts/framework-env {name}")
    return python


class Training:
    """A program with its files in a folder.

    Its lives are forked from one process that has imported the program, because an import takes longer than a life.

    Args:
        launched: whether torchrun starts the ranks of each life instead.
    """

    def __init__(
        self, framework: str, program: str, case: str, folder: Path, ranks: int = 1, *, launched: bool = False
    ) -> None:
        self._python, self._program = environment(framework), PROGRAMS / program
        self._case, self.folder, self.ranks = case, folder, ranks
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        #: The program as a process of its own.
        self.started = [str(self._python), str(self._program)]
        #: The command that starts a life, if none is forked.
        self.command = [str(self._python), *torchrun, str(self._program)] if launched else []
        self.env = os.environ | {
            "OMP_NUM_THREADS": "1",
            # At its exit torch waits up to 300 s for its processes that compile, if they do not end: twice on loaded processors.
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "SPOTGUARD_EVERY": "off",
            "PYTHONWARNINGS": "ignore",
            "HOME": str(folder),
            # Another version: pip install --no-deps --target DIR lightning==2.4.0, and FRAMEWORK_PATH=DIR.
            "PYTHONPATH": os.pathsep.join(
                filter(None, (os.environ.get("FRAMEWORK_PATH"), os.environ.get("PYTHONPATH")))
            ),
        }

    def run(self, out: str, *more: str) -> subprocess.CompletedProcess[str]:
        """One life. A forked one has both outputs in `stderr`."""
        words = [str(self.folder / out), self._case, *more]
        if self.command:
            return subprocess.run(
                [*self.command, *words],
                env=self.env,
                capture_output=True,
                text=True,
                cwd=self.folder,
                timeout=LIFE,
            )
        said = self.folder / "said"
        said.write_text("")
        life = {
            "words": words,
            "env": self.env,
            "folder": str(self.folder),
            "ranks": self.ranks,
            "said": str(said),
        }
        codes = lives(self._python, self._program, words, self.env).run(life)
        # SIGTERM is what a rank gets when another one has ended; a rank may abort in torch once all is committed. If one was killed,
        # the others' errors follow from that.
        follow = {-signal.SIGTERM, -signal.SIGABRT} | ({1} if -signal.SIGKILL in codes else set())
        own = [code for code in codes if code not in follow] or codes
        first = next((code for code in own if code not in ENDED), own[0])
        text = said.read_text()
        assert "SG704" not in text, text  # an internal error of spotguard's
        return subprocess.CompletedProcess(words, first, "", text)

    def plain(self) -> Any:
        """The result of an uninterrupted run without spotguard."""
        done = self.run("plain")
        assert done.returncode == 0, done.stderr
        return self.result("plain")

    def cut(self, *events: str) -> tuple[Any, int]:
        """The result of a guarded run that is ended at each of these events, and the number of its lives."""
        for life in range(1, LIVES):
            done = self.run("cut", str(self.folder / "store"), *events)
            if done.returncode == 0:
                return self.result("cut"), life
            # torchrun ends with 1, whatever its ranks end with.
            by_ranks = self.command and "ChildFailedError" in done.stderr and life <= len(events)
            by_error = done.returncode == 1 and "EndedByError: at step" in done.stderr
            assert done.returncode in ENDED or by_ranks or by_error, done.stderr
        raise AssertionError(f"not done after {LIVES} lives")

    def result(self, out: str) -> Any:
        import torch

        return torch.load(self.folder / out, weights_only=False)


def warnings_in(said: str) -> list[str]:
    """The lines with a code in what a life has printed. A busy machine's boundaries may cost much, which is no finding."""
    costly = "copying what changes between steps costs"
    return [line for line in said.splitlines() if "[SG" in line and costly not in line]


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """The places at which two results differ, in any bit."""
    import numpy as np
    import torch

    if isinstance(one, np.ndarray):
        return [] if np.array_equal(one, other) else [path]
    if isinstance(one, torch.Tensor):
        return [] if torch.equal(one, other) else [path]
    if isinstance(one, dict):
        keys = [f"{path}/{key}" for key in one.keys() ^ other.keys()]
        return keys + [
            each
            for key in one.keys() & other.keys()
            for each in differences(one[key], other[key], f"{path}/{key}")
        ]
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return [f"{path}: {len(one)} and {len(other)}"]
        pairs = enumerate(zip(one, other, strict=True))
        return [each for at, (a, b) in pairs for each in differences(a, b, f"{path}/{at}")]
    return [] if one == other else [f"{path}: {one!r} and {other!r}"]
