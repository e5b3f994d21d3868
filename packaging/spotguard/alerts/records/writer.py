"""The processes that write to a run's store for the helper of alerts.

Each is a process of its own, because a store's SDK is too large for the helper, and because a store may hang: the helper kills it
then.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...agent.process.child import Child
from ...providers.clock import Clock

log = logging.getLogger("spotguard.agent")

#: Seconds for the store.
PATIENCE = 20.0
#: Seconds between two looks at the processes above which the helper was stopped, and they most likely with it: it looks every five.
_STOPPED = 10.0


@dataclass(frozen=True, slots=True)
class StoreJob:
    """The work of one process.

    Attributes:
        module: the module that it runs; it reads the body as JSON from stdin.
        body: plain JSON.
        failure: what a failure means, for the log, with its code.
    """

    module: str
    body: Mapping[str, Any]
    failure: str


@dataclass(slots=True)
class _Running:
    job: StoreJob
    #: Monotonic seconds at which it is killed.
    until: float
    child: Child


class StoreProcesses:
    """The processes at work. One thread calls it.

    Args:
        clock: the clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: list[_Running] = []
        #: Jobs that could not be started, and until when that is tried.
        self._waiting: list[tuple[StoreJob, float]] = []
        #: Monotonic seconds of the last look.
        self._looked_at = clock.monotonic()

    def start(self, job: StoreJob) -> None:
        """Start a process, now or later: a machine out of memory or processes may have some again. Never blocks."""
        self._begin(job, self._clock.monotonic() + PATIENCE)

    def _begin(self, job: StoreJob, until: float) -> None:
        try:
            # Its output is dropped: the helper's own is the pipe to its agent.
            words, given = (sys.executable, "-P", "-m", job.module), json.dumps(job.body).encode()
            child = Child(words, lambda ended: None, given=given)
        except OSError as error:
            if self._clock.monotonic() < until:
                self._waiting.append((job, until))
            else:
                log.warning("%s cannot be started (%s): %s", sys.executable, error.strerror, job.failure)
            return
        self._running.append(_Running(job, until, child))

    def busy(self) -> bool:
        """Return whether a process works. One that is out of time is killed.

        Time in which this process was stopped itself, as all are on a machine that is suspended, does not count.
        """
        now = self._clock.monotonic()
        since, self._looked_at = now - self._looked_at, now
        stopped = since if since > _STOPPED else 0.0
        for each in self._running:
            each.until += stopped
        waiting, self._waiting = [(job, until + stopped) for job, until in self._waiting], []
        for job, until in waiting:
            self._begin(job, until)
        for each in [*self._running]:
            works = each.child.works
            if works and self._clock.monotonic() < each.until:
                continue
            self._running.remove(each)
            if works:
                each.child.close()
                log.warning("the store took more than %.0f s: %s", PATIENCE, each.job.failure)
            elif each.child.returncode:
                log.warning("%s", each.job.failure)
        return bool(self._running or self._waiting)

    def close(self) -> None:
        """Kill the processes that are left."""
        for each in self._running:
            each.child.close()
        self._running, self._waiting = [], []
