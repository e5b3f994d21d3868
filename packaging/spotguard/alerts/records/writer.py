"""The processes that read and write a run's store for the helper of alerts.

Each is a process of its own, because a store's SDK is too large for the helper, and because a store may hang: the helper kills it
then.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any

from ...providers.clock import Clock

log = logging.getLogger("spotguard.agent")

#: Seconds for the store.
PATIENCE = 20.0


@dataclass(frozen=True, slots=True)
class StoreJob:
    """The work of one process.

    Attributes:
        module: the module that it runs; it reads the body as JSON from stdin.
        body: plain JSON.
        failure: what a failure means, for the log, with its code.
        then: takes the JSON that the process has printed; None if it prints nothing.
    """

    module: str
    body: Mapping[str, Any]
    failure: str
    then: Callable[[Any], None] | None = None


@dataclass(frozen=True, slots=True)
class _Running:
    job: StoreJob
    until: float
    process: subprocess.Popen[bytes]
    output: IO[bytes]


class StoreProcesses:
    """The processes at work. One thread calls it.

    Args:
        clock: the clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: list[_Running] = []

    def start(self, job: StoreJob) -> None:
        """Start a process. Never blocks."""
        # Not a pipe: nobody reads before the end.
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed once the process has ended
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", job.module],
            stdin=subprocess.PIPE,
            stdout=output,
            process_group=0,
        )
        self._running.append(_Running(job, self._clock.monotonic() + PATIENCE, process, output))
        assert process.stdin is not None
        with process.stdin as given:
            given.write(json.dumps(job.body).encode())  # a few KiB: a pipe takes 64

    def busy(self) -> bool:
        """Return whether a process works. One that is out of time is killed, and one that has ended hands over its output."""
        running, self._running = self._running, []
        for each in running:
            if each.process.poll() is not None:
                self._ended(each)
            elif self._clock.monotonic() >= each.until:
                _kill(each)
                log.warning("the store took more than %.0f s: %s", PATIENCE, each.job.failure)
            else:
                self._running.append(each)
        return bool(self._running)

    def close(self) -> None:
        """Kill the processes that are left."""
        for each in self._running:
            _kill(each)
        self._running = []

    def _ended(self, each: _Running) -> None:
        with each.output as output:
            output.seek(0)
            data = output.read()
        if each.process.returncode:
            log.warning("%s", each.job.failure)
        elif each.job.then is not None:
            each.job.then(json.loads(data))


def _kill(each: _Running) -> None:
    each.process.kill()
    each.process.wait()
    each.output.close()
