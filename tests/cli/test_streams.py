"""The command line's streams: the command's are its own, and one that nobody reads, or none at all, is no bug."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.full import Full
from tests.fakes.report import TIMEOUT
from tests.tiers import few_fast


def test_the_commands_streams_are_its_own(tmp_path: Path) -> None:
    """What it prints comes through untouched, binary bytes too, and stdout holds nothing of ours."""
    code = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])"
    done = subprocess.run(
        [sys.executable, "-m", "spotguard", "run", sys.executable, "-c", code],
        cwd=tmp_path,
        input=bytes(range(256)) * 500,
        capture_output=True,
        timeout=TIMEOUT,
        start_new_session=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (bytes(range(256)) * 500)[::-1]


def test_a_reader_that_has_enough(tmp_path: Path) -> None:
    """`spotguard status --json | head -0`: no traceback, no complaint."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "spotguard", "status", "--json"],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 1


@pytest.mark.parametrize(("words", "code"), [(["--keep", "0", "true"], 2), (["no-such-program"], 127)])
def test_a_stderr_that_nobody_reads_does_not_hold_the_exit(
    tmp_path: Path, words: list[str], code: int
) -> None:
    """The line is lost, the code is not."""
    full = Full()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "spotguard", "run", *words],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=full.writing,
            timeout=TIMEOUT,
            start_new_session=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (code, b"")
        assert set(full.empty()) == set(b"x")
    finally:
        full.close()


def test_a_stderr_that_is_closed_sends_nothing_to_stdout(tmp_path: Path) -> None:
    """It belongs to the command."""
    shell = 'exec "$0" -m spotguard run --keep 0 true 2>&-'
    closed = subprocess.run(
        ["sh", "-c", shell, sys.executable],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        timeout=TIMEOUT,
        check=False,
    )
    assert (closed.returncode, closed.stdout) == (2, b"")


@pytest.mark.parametrize(("words", "code"), [("status --json", 1), ("ls", 1), ("drill", 1), ("run true", 0)])
def test_streams_that_are_closed_are_no_bug(tmp_path: Path, words: str, code: int) -> None:
    """As some services start their programs: nobody reads the answer, and the code is what it would have been."""
    closed = subprocess.run(
        ["sh", "-c", f'exec "$0" -m spotguard {words} <&- >&-', sys.executable],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert closed.returncode == code
    assert "bug" not in closed.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", few_fast(["status --json", "status"]))
def test_a_disk_that_is_full_is_no_bug(tmp_path: Path, words: str) -> None:
    """Of whoever keeps the answer: one line, and no second one at the end."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "spotguard", *words.split()],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    said = "spotguard: error: the answer could not be written: No space left on device: look at where stdout goes\n"
    assert (done.returncode, done.stderr) == (1, said)
