"""Processes that serve a job's own store, forked from one that has loaded torch: for a load each takes two seconds.

Each line of the standard input is a command: `serve`, or `stop`, `go` or `kill` and a process. A line answers it once it is done.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from torch.distributed import TCPStore  # type: ignore[attr-defined]

#: prctl(2): the signal for a process whose parent dies.
_PR_SET_PDEATHSIG = 1


def serve() -> str:
    """Fork a host. Returns its process and its port."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writing, b"%d" % store.port)
        while True:
            signal.pause()
    port = os.read(reading, 100).decode()
    os.close(reading)
    os.close(writing)
    return f"{pid} {port}"


def do(command: str, pid: int) -> str:
    if command == "stop":
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED)  # on another core it may answer once more before it stands
    elif command == "go":
        os.kill(pid, signal.SIGCONT)
    else:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return "done"


if __name__ == "__main__":
    for line in sys.stdin:
        command, *of = line.split()
        print(do(command, int(of[0])) if of else serve(), flush=True)
