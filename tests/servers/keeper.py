"""Runs programs for a test, and ends them with everything that they started when the test goes, however it goes.

`python keeper.py FOLDER COMMANDS`: the commands are a JSON list of lists of words. It ends when its stdin ends, which
the kernel sees to when the test's process is killed; at SIGTERM; or when one of the programs ends by itself. Then the
programs, their workers and the folder are gone. It needs the standard library only, and is no part of the suite's
own process: what a killed test cannot do, somebody else must.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

# prctl(2), from linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None)


def main() -> int:
    """The exit code: 1 when a program ended before it was told to, so that nobody waits for its answer."""
    folder, commands = sys.argv[1], json.loads(sys.argv[2])
    # Orphans come to us: a server whose workers outlive it, or leave its session, is ended all the same.
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(0))
    try:
        started = [_start(words, folder) for words in commands]
        watched = select.poll()
        watched.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
        for program in started:
            watched.register(os.pidfd_open(program.pid), select.POLLIN)
        said = [fd for fd, _ in watched.poll()]
        return 0 if sys.stdin.fileno() in said else 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_all()
        shutil.rmtree(folder, ignore_errors=True)


def _start(words: list[str], folder: str) -> subprocess.Popen[bytes]:
    """With SIGKILL to come should this keeper be killed itself."""
    return subprocess.Popen(
        words,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: _libc.prctl(
            _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0
        ),  # one thread: it is safe here
    )


def _end_all() -> None:
    """Kill the children until there are none: a killed one's own children become ours."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while True:
        for pid in children.read_text().split():
            os.kill(int(pid), signal.SIGKILL)  # ours and not waited for: the number cannot be another's yet
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


if __name__ == "__main__":
    sys.exit(main())
