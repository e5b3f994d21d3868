"""`spotguard prove` at the command line, as far as it goes without a training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from spotguard.cli.main import main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "the command is missing: use spotguard prove"),
        (["--steps", "2", "--", "train"], "--steps '2': expected a whole number from 3 up"),
        (["--steps", "many", "train"], "--steps 'many': expected a whole number from 3 up"),
        (["--tries", "0", "--", "train"], "--tries '0': expected a whole number from 1 to 49"),
        (["--steps", "5", "--tries", "5", "train"], "--tries '5': expected a whole number from 1 to 4"),
        (["--jobs", "0", "train"], "--jobs '0': expected a whole number from 1 up"),
        (["--timeout", "1", "train"], "--timeout '1': expected 5 seconds or more"),
        (["--copy-limit", "-1", "train"], "--copy-limit '-1': expected a whole number from 0"),
        (
            ["--link", "nowhere", "train"],
            "--link 'nowhere': expected a directory inside the working directory",
        ),
        (["--step", "5", "--", "train"], "unknown flag '--step': did you mean --steps?"),
        (["--", "spotguard", "run", "--", "python", "t.py"], "use spotguard prove -- python t.py"),
        (["--", "python", "-m", "spotguard", "run", "train"], "prove guards the command by itself"),
    ],
)
def test_wrong_words_are_refused(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", *words]) == 2
    assert error in capsys.readouterr().err


def test_a_folder_that_holds_something_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "kept").mkdir()
    (folder / "kept" / "proof").touch()
    assert main(["prove", "--folder", "kept", "--", "train"]) == 2
    assert "--folder 'kept' is not empty: name a new one" in capsys.readouterr().err
    (folder / "file").touch()
    assert main(["prove", "--folder", "file", "--", "train"]) == 2
    assert "--folder 'file': File exists; name a directory that can be made" in capsys.readouterr().err


def test_a_command_that_never_registers_proves_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 4: neither yes nor no. Nothing stays."""
    assert main(["prove", "--", sys.executable, "-c", "print('hello')"]) == 4
    error = capsys.readouterr().err
    assert "ended without a call of spotguard.register; name the command that trains" in error
    assert error.endswith("(--folder DIR keeps its output)\n")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_proof_leaves_nothing_behind(folder: Path, signum: signal.Signals) -> None:
    """No run, nothing that a run has started, and no copy."""
    os.mkfifo(folder / "fifo")
    (folder / "job").mkdir()
    (folder / "job" / "train.py").write_text(
        "import os, signal\n"
        "if os.fork() == 0: os.setsid()\n"
        f"fifo = os.open({str(folder / 'fifo')!r}, os.O_WRONLY)\n"
        "signal.pause()\n"
    )
    (folder / "tmp").mkdir()
    proving = subprocess.Popen(
        [sys.executable, "-m", "spotguard", "prove", "--", sys.executable, "train.py"],
        cwd=folder / "job",
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    end = os.open(folder / "fifo", os.O_RDONLY)  # until one of them is there
    proving.send_signal(signum)
    assert proving.wait(100) in (128 + signum, -signum)
    assert os.read(end, 1) == b"", "somebody still holds the other end"
    os.close(end)
    assert list((folder / "tmp").iterdir()) == []


def test_a_folder_that_was_named_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").write_text("import sys; sys.exit('no data')")
    assert main(["prove", "--jobs", "1", "--folder", "proof", "--", sys.executable, "train.py"]) == 4
    console = folder / "proof" / "plain-1" / "life-1" / "console.txt"
    assert (
        f"exit code 1: no data; run the command by itself first (its output is in {console})"
        in capsys.readouterr().err
    )
    assert console.read_text() == "no data\n"
    assert not (folder / "proof" / "plain-1" / "work").exists(), "copies go"
