"""Trainings of frameworks, each in the environment that `scripts/framework-env NAME` makes, cut and resumed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT

PROGRAMS = ROOT / "tests" / "integrations" / "programs"
#: The exit codes of a life that a notice, or SIGKILL, has ended.
ENDED = (75, -9)
#: The most lives of one training.
LIVES = 80


def environment(name: str) -> Path:
    """The Python of a framework's environment; the test is skipped by name where there is none."""
    python = ROOT / f".venv-{name}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"there is no .venv-{name}: scripts/framework-env {name}")
    return python


def with_nights(cases: Iterable[str], nights: Collection[str]) -> list[Any]:
    """The cases for `parametrize`, those of the nights in the soak: the slow tier takes minutes as it is."""
    return [pytest.param(case, marks=pytest.mark.soak) if case in nights else case for case in cases]


class Training:
    """A program with its files in a folder."""

    def __init__(self, framework: str, program: str, case: str, folder: Path, ranks: int = 1) -> None:
        python = str(environment(framework))
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        self._words = [python, *(launcher if ranks > 1 else []), str(PROGRAMS / program)]
        self._case, self.folder, self._ranks = case, folder, ranks
        self.env = os.environ | {
            "OMP_NUM_THREADS": "1",
            "SPOTGUARD_EVERY": "off",
            "PYTHONWARNINGS": "ignore",
            "HOME": str(folder),
        }

    def run(self, out: str, *more: str) -> subprocess.CompletedProcess[str]:
        words = [*self._words, str(self.folder / out), self._case, *more]
        return subprocess.run(
            words, env=self.env, capture_output=True, text=True, cwd=self.folder, timeout=300
        )

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
            # torchrun ends with 1, whatever its ranks end with; a rank may abort in torch once all is committed.
            by_ranks = self._ranks > 1 and "ChildFailedError" in done.stderr and life <= len(events)
            assert done.returncode in ENDED or by_ranks, done.stderr
        raise AssertionError(f"not done after {LIVES} lives")

    def result(self, out: str) -> Any:
        import torch

        return torch.load(self.folder / out, weights_only=False)


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """The places at which two results differ, in any bit."""
    import torch

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
