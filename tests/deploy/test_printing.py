"""`python -m spotguard.containers`, `.monitoring`, `.slurm`: what they say to whom, alike. What they print, each has tests of its own for."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from spotguard import containers, monitoring
from spotguard.cli import main

ROOMS = ("containers", "monitoring", "slurm")
FILES = {"containers": containers.FILES, "monitoring": monitoring.FILES}


def main_of(room: str) -> Callable[[Sequence[str]], int]:
    found: Callable[[Sequence[str]], int] = importlib.import_module(f"spotguard.{room}.__main__").main
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_who_takes_it_for_a_command_is_told_what_to_say(
    room: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main([room, "x"]) == 2
    assert f"unknown command '{room}': say python -m spotguard.{room}\n" in capsys.readouterr().err


@pytest.mark.parametrize("room", ROOMS)
def test_it_opens_no_command_line(room: str) -> None:
    """Which opens the commands: what both need lies below."""
    code = f"import sys, spotguard.{room}.__main__; sys.exit('spotguard.cli.main' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("room", FILES)
def test_without_a_word_its_files_are_listed(room: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_of(room)([]) == 0
    listed = capsys.readouterr().out.splitlines()
    for name, what in FILES[room].items():
        assert any(line.split() == [name, *what.split()] for line in listed), name


@pytest.mark.parametrize("room", ROOMS)
def test_the_help_says_how_it_is_called_and_what_there_is(
    room: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main_of(room)(["--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert said.startswith(f"usage: python -m spotguard.{room}")
    assert all(name in said for name in FILES.get(room, {}))


@pytest.mark.parametrize(
    ("room", "words", "said"),
    [
        ("containers", ["pod", "aws"], "'pod': expected one of dockerfile, agent, job"),
        ("containers", ["Dockerfile"], "'Dockerfile': did you mean dockerfile?"),
        ("containers", ["job", "ibm"], "unknown cloud 'ibm': say aws, gcp or azure, as in job aws"),
        ("containers", ["--image", "a"], "the following arguments are required: FILE"),
        ("monitoring", ["rules.yaml"], "'rules.yaml': did you mean rules.yml?"),
        ("monitoring", ["x"], "'x': expected one of rules.yml, prometheus.yml"),
        ("monitoring", ["rules.yml", "x"], "unknown word 'x'"),
        ("monitoring", ["--all"], "the following arguments are required: FILE"),
        ("slurm", ["torchrun", "train.py"], "'torchrun train.py': the script takes the job's words from sbatch"),
        ("slurm", ["--nodes=2"], "'--nodes=2': the script takes the job's words from sbatch"),
    ],
)  # fmt: skip
def test_what_it_does_not_know_is_refused_in_a_line(
    room: str, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main_of(room)(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("spotguard: error: ")
    assert said in printed.err
    assert printed.err.count("\n") == 1


def printed_to(stdout: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Buffered, as a file or a pipe is."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, env=env, check=False
    )


def test_a_reader_that_has_enough_costs_no_traceback() -> None:
    """As with every command: `… | head -1`."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = printed_to(write, "spotguard.slurm")
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", ["spotguard.monitoring", "spotguard bootstrap --help"])
def test_a_disk_that_is_full_is_one_line(words: str) -> None:
    """Also where it shows at the end only: little stays in the buffer till then."""
    with open("/dev/full", "wb") as full:
        done = printed_to(full.fileno(), *words.split())
    said = "spotguard: error: the answer could not be written: No space left on device: look at where stdout goes\n"
    assert (done.returncode, done.stderr) == (1, said)
