"""`spotguard deploy`: what it says to whom. What it prints, each file has tests of its own for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spotguard.cli.commands.setup.deploy import FILES, KINDS
from spotguard.cli.main import main


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_that_is_taken_for_a_command_is_answered_with_the_command(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([kind, "x"]) == 2
    assert f"unknown command '{kind}': use spotguard deploy {kind}\n" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["containers", "job", "aws"], ["slurm"], ["monitoring", "rules.yml"]])
def test_a_file_alone_is_printed_on_stdout(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spotguard", "deploy", *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert (done.stdout != "", done.stderr) == (True, "")


def test_without_a_word_the_kinds_are_listed_and_with_one_its_files(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words, names in (([], KINDS), *(([kind], files) for kind, files in FILES.items())):
        assert main(["deploy", *words]) == 0
        listed = capsys.readouterr().out.splitlines()
        for name, what in names.items():
            assert any(line.split() == [name, *what.split()] for line in listed), name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("container", "'container': did you mean containers?"),
        ("xyz", "'xyz': expected one of containers, slurm, monitoring"),
        ("containers pod aws", "'pod': expected one of dockerfile, agent, job"),
        ("containers Dockerfile", "'Dockerfile': did you mean dockerfile?"),
        ("containers job ibm", "unknown cloud 'ibm': expected aws, gcp or azure, as in job aws"),
        ("containers job aws x", "unknown word 'x': the cloud is the last word, as in containers job aws"),
        ("monitoring rules.yaml", "'rules.yaml': did you mean rules.yml?"),
        ("monitoring x", "'x': expected one of rules.yml, prometheus.yml"),
        ("monitoring rules.yml x", "unknown word 'x': rules.yml is for every cloud"),
        ("monitoring --image a", "--image: monitoring holds no image of the agent: leave it out"),
        ("slurm torchrun train.py", "'torchrun train.py': the script takes the job's words from sbatch"),
        ("slurm --nodes=2", "unknown flag '--nodes': see spotguard deploy --help"),
    ],
)
def test_an_unknown_word_of_deploy_is_refused_in_one_line(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["deploy", *words.split()]) == 2
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
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=100, env=env, check=False
    )


def test_a_reader_that_has_enough_costs_no_traceback() -> None:
    """As with every command: `… | head -1`."""
    read, write = os.pipe()
    os.close(read)
    try:
        done = printed_to(write, "spotguard", "deploy", "slurm")
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", ["spotguard deploy monitoring", "spotguard bootstrap --help"])
def test_a_disk_that_is_full_is_one_line(words: str) -> None:
    """Also where it shows at the end only: little stays in the buffer till then."""
    with open("/dev/full", "wb") as full:
        done = printed_to(full.fileno(), *words.split())
    said = "spotguard: error: the answer could not be written: No space left on device: look at where stdout goes\n"
    assert (done.returncode, done.stderr) == (1, said)
