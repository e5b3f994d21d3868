"""`spotguard prove` as a person types it, of a program of `programs/`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Proven:
    code: int
    #: What `--json` says; empty where there is none.
    body: dict[str, Any]
    error: str

    @property
    def causes(self) -> list[str]:
        return [each["id"] for each in self.body["causes"]]


Prove = Callable[..., Proven]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The working folder."""
    (tmp_path / "job").mkdir()
    return tmp_path / "job"


@pytest.fixture
def prove(job: Path, tmp_path: Path) -> Prove:
    def prove(program: str, *options: str, command: tuple[str, ...] = ()) -> Proven:
        """
        Args:
            program: one of `programs/`, or its text.
            command: what stands before the program's name.
        """
        text = program if "\n" in program else (HERE / "programs" / f"{program}.py").read_text()
        (job / "train.py").write_text(text)
        shutil.rmtree(tmp_path / "tmp", ignore_errors=True)
        (tmp_path / "tmp").mkdir()
        done = subprocess.run(
            [
                *(sys.executable, "-m", "spotguard", "prove", "--json", "--timeout", "200", *options),
                *("--", *(command or (sys.executable,)), "train.py"),
            ],
            cwd=job,
            env={
                **os.environ,
                "TMPDIR": str(tmp_path / "tmp"),
                "OMP_NUM_THREADS": "1",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1500,
        )
        body = json.loads(done.stdout) if done.stdout else {}
        if body:
            assert list((tmp_path / "tmp").iterdir()) == [], "something stays behind"
        return Proven(done.returncode, body, done.stderr)

    return prove
