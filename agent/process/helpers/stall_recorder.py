"""The recorder of stalls and deaths: processes that keep in the store what no training process can write there by itself.

One reads the stacks of processes in which no Python runs (`spotguard.alerts.records.held_stacks`). The other records a rank that
was killed (`spotguard.alerts.records.failure_record`), if no helper of alerts does. Both are processes of their own,
because they load a store, and because py-spy or a store may hang. They have the command's environment, and with it the command's
credentials.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from ....providers.text import TEXT, clip
from ...actions import ReadStacks, RecordFailure
from ..child import Child, Ended

logger = logging.getLogger("spotguard.agent")

_STACKS, _FAILURE = "spotguard.alerts.records.held_stacks", "spotguard.alerts.records.failure_record"
#: Seconds for all ranks of one stall together.
_PATIENCE = 90.0
#: Lines that are logged, of at most 300 characters each.
_LINES = 200


class StallRecorder:
    """The runner of the processes, one of each kind at a time. The loop's thread calls it, and never waits.

    Args:
        env: the command's environment.
        patience: seconds until a process is killed.
    """

    def __init__(self, env: Mapping[str, str], patience: float = _PATIENCE) -> None:
        self._env = env
        self._patience = patience
        #: By module.
        self._running: dict[str, Child] = {}
        self._closed = False

    def read(self, action: ReadStacks) -> None:
        """Begin to read stacks. If a reader still works for another run, that one goes on instead."""
        if self._works(_STACKS):
            logger.warning("the stacks of run %s are not read: others are being read", action.run_id)
            return
        body = {
            "run_id": action.run_id,
            "store": action.store,  # not among the words: it may hold a secret, and `ps` shows words
            "step": action.step,
            "ranks": [
                {"pid": pid, "rank": rank, "attempt": attempt}
                for pid, (rank, attempt) in action.ranks.items()
            ],
        }
        self._start(_STACKS, body, "the stacks are not kept")

    def record(self, action: RecordFailure) -> None:
        """Begin to record a failure in the store of its run, if it has one and no rank has recorded it."""
        if not action.facts.get("store") or action.facts.get("reported"):
            return
        if self._works(_FAILURE):
            run_id = action.facts.get("run_id")
            logger.warning("a failure of run %s is not recorded: another one is being recorded", run_id)
            return
        self._start(
            _FAILURE,
            {"facts": dict(action.facts), "ended": time.time()},
            "the record of a failure is not kept",
        )

    @property
    def records(self) -> bool:
        """Whether a failure is being recorded."""
        return self._works(_FAILURE)

    def close(self) -> None:
        """End the processes, and wait for that."""
        self._closed = True
        for process in self._running.values():
            process.close()

    def _works(self, module: str) -> bool:
        return module in self._running and self._running[module].works

    def _start(self, module: str, body: Mapping[str, Any], failure: str) -> None:
        try:
            self._running[module] = Child(
                (sys.executable, "-P", "-m", module),
                lambda ended: self._log(failure, ended),
                given=json.dumps(body).encode(),
                env=self._env,
                errors=subprocess.STDOUT,
                until=time.monotonic() + self._patience,
            )
        except OSError as error:
            logger.warning("%s: %s: %s", failure, sys.executable, error.strerror)

    # --- the thread that follows a process ---

    def _log(self, failure: str, ended: Ended) -> None:
        if ended.killed and not self._closed:
            logger.warning("%s: it took more than %.0f s", failure, self._patience)
        for line in ended.output.decode(errors="replace").splitlines()[:_LINES]:
            logger.warning("%s", clip(line, TEXT))
