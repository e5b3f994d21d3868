"""What is watched from an interpreter's first line on, in processes that never load torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spotguard.hooks.recorder.plan import VARIABLE, LifePlan
from spotguard.prove.record import OpenedFiles, read_files
from spotguard.prove.runner import write_startup


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_startup(tmp_path / "startup")
    plan = LifePlan("plain-1", str(tmp_path), str(tmp_path / "work"), "file:///nowhere", "r", 10, 60.0)
    plan.write(tmp_path / "plan.json")
    (tmp_path / "work").mkdir()
    return tmp_path


def files_of(folder: Path, code: str, *flags: str, path: str = "") -> OpenedFiles:
    env = {**os.environ, VARIABLE: str(folder / "plan.json"), "PYTHONPATH": f"{folder / 'startup'}:{path}"}
    command = [sys.executable, *flags, "-c", code]
    subprocess.run(command, cwd=folder / "work", env=env, check=True, timeout=100)
    return read_files(folder).within(folder / "work")


def test_files_are_noted_in_the_ways_in_which_they_are_opened(folder: Path) -> None:
    (folder / "work" / "there").write_text("1")
    code = """
import os, pathlib, sqlite3, tempfile
open("there").read()
open("made", "w").write("1")
open("made").read()
open("log", "a").write("1")
open("there", "r+").close()
os.close(os.open("fresh", os.O_RDWR | os.O_CREAT))
pathlib.Path("new").write_text("1")
os.replace("new", "moved")
sqlite3.connect("runs.db").close()
try:
    open("missing")
except FileNotFoundError:
    pass
"""
    assert files_of(folder, code).ways == {
        "there": ["read", "update"],
        "made": ["write", "read"],
        "log": ["append"],
        "fresh": ["write"],
        "new": ["write"],
        "moved": ["write"],
        "runs.db": ["write"],
    }


def test_generators_are_seeded_unless_the_script_seeds_them(folder: Path) -> None:
    """numpy's once it is loaded; torch's likewise."""
    numpy = pytest.importorskip("numpy")
    code = (
        "import random, numpy.random as n; open(f'{random.getrandbits(32)}-{n.randint(10**6)}', 'w').close()"
    )
    first, again = (set(files_of(folder, code).ways) for _ in range(2))
    assert first == again
    (name,) = first
    assert name.endswith(f"-{numpy.random.RandomState(0).randint(10**6)}"), "the plan's seed"
    own = "import random; random.seed(7); open(str(random.getrandbits(32)), 'w').close()"
    assert files_of(folder, own).ways.keys() > first


def test_a_thread_is_noted_where_the_script_starts_it(folder: Path) -> None:
    """Itself, or by the standard library; what a library of others starts is nobody's mistake."""
    (folder / "work" / "train.py").write_text(
        "import threading, concurrent.futures\n"
        "thread = threading.Thread(target=print)\n"
        "thread.start()\n"
        "with concurrent.futures.ThreadPoolExecutor() as pool:\n"
        "    pool.submit(print)\n"
    )
    files_of(folder, "import runpy; runpy.run_path('train.py')")
    found = [place.rpartition("/")[2] for place in read_files(folder).threads]
    assert found == ["train.py:3", "train.py:5"]


def test_a_sitecustomize_of_the_users_own_still_runs(folder: Path) -> None:
    (folder / "own").mkdir()
    (folder / "own" / "sitecustomize.py").write_text("open('customized', 'w').close()")
    found = files_of(
        folder, "import sitecustomize, sys; print(sitecustomize.__file__)", path=str(folder / "own")
    )
    assert found.ways == {"customized": ["write"]}


def test_children_are_watched_too_and_an_isolated_python_is_not(folder: Path) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, {}'-c', 'open(\"child\", \"w\")'], check=True)"
    assert files_of(folder, code.format("'-I', ")).ways == {}
    assert files_of(folder, code.format("")).ways == {"child": ["write"]}


def test_a_plan_that_is_gone_harms_nobody(folder: Path) -> None:
    (folder / "plan.json").write_text("{")
    assert files_of(folder, "open('made', 'w').close()").ways == {}


def test_a_plan_comes_back_as_it_was_written(folder: Path) -> None:
    plan = LifePlan.read(folder / "plan.json")
    plan.write(folder / "again.json")
    assert json.loads((folder / "again.json").read_text()) == json.loads((folder / "plan.json").read_text())
