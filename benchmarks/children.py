"""Child processes of a benchmark: started, read from, and always ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

#: A checkout needs no installation to be measured.
_ROOT = Path(__file__).parent.parent


@contextmanager
def child(
    command: Sequence[str],
    *,
    cwd: Path,
    answers: bool = False,
    python: str = sys.executable,
    **variables: str,
) -> Iterator[subprocess.Popen[str]]:
    """A Python child in a group of its own; whatever is left of the group is killed at the end.

    Args:
        command: what follows `python`: ["-m", "spotguard", "run", ...].
        answers: whether its stdout is read. Its stderr is shown if it fails.
        python: another environment's.
        variables: of its environment, beside ours without SPOTGUARD_*.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPOTGUARD_")}
    path = os.pathsep.join([str(_ROOT / "packaging"), str(_ROOT)])
    with tempfile.TemporaryFile("w+") as words:
        process = subprocess.Popen(
            [python, *command],
            cwd=cwd,
            env=kept | {"PYTHONPATH": path} | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if answers else subprocess.DEVNULL,
            stderr=words,
            text=True,
            process_group=0,
        )
        try:
            yield process
        except BaseException:
            words.seek(0)
            sys.stderr.write(words.read()[-2000:])
            raise
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):  # it and its group may have ended by themselves
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def line(process: subprocess.Popen[str]) -> str:
    """The next line of a child that answers.

    Raises:
        RuntimeError: it has ended instead.
    """
    assert process.stdout is not None
    if not (text := process.stdout.readline()):
        raise RuntimeError(f"{process.args!r} ended with {process.wait()} instead of an answer")
    return text.strip()


def lines(process: subprocess.Popen[str]) -> list[str]:
    """All that a child says until it ends.

    Raises:
        RuntimeError: it has failed.
    """
    assert process.stdout is not None
    said = process.stdout.read().splitlines()
    if process.wait() != 0:
        raise RuntimeError(f"{process.args!r} failed with {process.returncode}")
    return said
