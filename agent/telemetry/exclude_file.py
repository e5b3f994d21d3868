"""`--exclude-file`: the names of the machines to which the job should not come back, for whoever starts it again.

A batch script reads it (`spotguard deploy slurm`): Slurm changes the excluded nodes of a job only once the job waits again, and
then no agent runs.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from typing import Protocol

logger = logging.getLogger("spotguard.agent")

#: Seconds that the agent's end waits for the file: its file system may hang, as may have been the failure.
_PATIENCE = 2.0
#: Slurm's own name for this machine, in the environment of each task.
_NODE = "SLURMD_NODENAME"


class Exclusion(Protocol):
    """Protocol of an `ExcludeFile` and of a `NodeLabel`: a way to keep the job from the machine that failed."""

    def add(self, machine: str, kind: str, *, broken: bool) -> None: ...

    def close(self) -> None: ...


class ExcludeFile:
    """The file. Several machines may append to it, a line each; of one machine one name counts.

    Args:
        path: the file; its directory must be there.
        env: the agent's environment.
    """

    def __init__(self, path: str, env: Mapping[str, str]) -> None:
        self._path = path
        self._here = env.get(_NODE) or os.uname().nodename
        #: The threads that write, by machine.
        self._writers: dict[str, threading.Thread] = {}

    def add(self, machine: str, kind: str, *, broken: bool = False) -> None:
        """Append the name of a machine, "" for this one, in a thread. Never blocks."""
        machine = machine or self._here
        if machine in self._writers:
            return
        self._writers[machine] = threading.Thread(
            target=self._append, args=(machine,), name="spotguard-exclude-file", daemon=True
        )
        try:
            self._writers[machine].start()
        except RuntimeError as error:  # a limit of processes counts threads
            del self._writers[machine]
            self._failed(machine, str(error))

    def close(self) -> None:
        """Wait a moment for the names."""
        until = time.monotonic() + _PATIENCE
        for machine, writer in self._writers.items():
            writer.join(max(0.0, until - time.monotonic()))
            if writer.is_alive():
                self._failed(machine, "it hangs")

    def _append(self, machine: str) -> None:
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, f"{machine}\n".encode())
            finally:
                os.close(fd)
        except OSError as error:
            self._failed(machine, error.strerror or str(error))

    def _failed(self, machine: str, why: str) -> None:
        logger.error(
            "--exclude-file %r cannot be written: %s; exclude %s in your scheduler", self._path, why, machine
        )
