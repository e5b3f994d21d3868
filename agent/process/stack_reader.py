"""The reader of stacks: a process that reads those of training processes from outside, for no Python runs in them.

It is a process of its own (`spotguard.alerts.records.held_stacks`), because it loads a store, and because py-spy or a store may hang. It
has the command's environment, and with it the command's credentials.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress

from ...providers.text import TEXT, clip
from ..actions import ReadStacks

logger = logging.getLogger("spotguard.agent")

#: Seconds for all processes of one stall together.
_PATIENCE = 90.0
#: Seconds that `close` waits for the thread after the kill.
_CLOSING = 0.5
#: Lines that are logged, of at most 300 characters each.
_LINES = 200


class StackReader:
    """The runner of one reader at a time. The loop's thread calls it, and never waits.

    Args:
        env: the command's environment.
        patience: seconds until a reader is killed.
    """

    def __init__(self, env: Mapping[str, str], patience: float = _PATIENCE) -> None:
        self._env = env
        self._patience = patience
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def start(self, action: ReadStacks) -> None:
        """Begin to read. If a reader still works for another run, that one goes on instead."""
        if self._thread is not None and self._thread.is_alive():
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
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "spotguard.alerts.records.held_stacks"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(self._env),
                process_group=0,
            )
        except OSError as error:
            logger.warning("the stacks are not read: %s: %s", sys.executable, error.strerror)
            return
        self._thread = threading.Thread(
            target=self._follow,
            args=(self._process, json.dumps(body).encode()),
            name="spotguard-stack-reader",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """End the process, and wait for that."""
        if self._process is not None:
            _kill(self._process)
        if self._thread is not None:
            self._thread.join(_CLOSING)

    # --- the thread that follows the process ---

    def _follow(self, process: subprocess.Popen[bytes], given: bytes) -> None:
        try:
            output, _ = process.communicate(given, timeout=self._patience)
        except subprocess.TimeoutExpired:
            _kill(process)
            output, _ = process.communicate()
            logger.warning("the stacks are not kept: reading them took more than %.0f s", self._patience)
        for line in output.decode(errors="replace").splitlines()[:_LINES]:
            logger.warning("%s", clip(line, TEXT))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the reader, and with it its py-spy, which may hang."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
