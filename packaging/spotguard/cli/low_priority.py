"""Low priority for a process that works beside training: in what it uses, and in what the kernel kills first."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
from contextlib import suppress
from pathlib import Path

#: `ioprio_set(2)`: the number of the call by machine; the process itself; and the class "idle", which gets a disk's idle time.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_PROCESS, _IOPRIO_IDLE = 1, 3 << 13
#: `prctl(2)`: the signal that this process gets at its parent's end.
_PR_SET_PDEATHSIG = 1


def stand_back() -> None:
    """Use only what others leave: of the processor, of disks, of memory. End with the parent process.

    What the kernel does not let this process set, stays as it is.
    """
    libc, parent = ctypes.CDLL(None, use_errno=True), os.getppid()
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has ended meanwhile
        raise SystemExit(128 + signal.SIGTERM)
    with suppress(OSError):
        os.nice(19)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if (number := _IOPRIO_SET.get(platform.machine())) is not None:
        libc.syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_IDLE)
    with suppress(OSError):
        # The kernel ends this process first if memory runs out, and not the training.
        Path("/proc/self/oom_score_adj").write_text("1000")
