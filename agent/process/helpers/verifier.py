"""The verifier: a `spotguard verify --background` that reads a checkpoint again beside the command, and is stopped at a notice.

It is a process of its own, because the agent loads no store, and because a store that hangs must hold up nothing. It has the
command's environment, and with it the command's credentials.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ....providers.text import TEXT, clip, key_list
from ...actions import Verify
from ...events import Event, Verified
from ..child import Child, Ended

logger = logging.getLogger("spotguard.agent")

#: The results of `spotguard verify`, by its own words.
_STATUSES = {"complete": "sound", "damaged": "damaged", "partial": "partial"}


class Verifier:
    """The runner of one verification at a time. The loop's thread calls it.

    Args:
        env: the command's environment.
        post: takes the `Verified` of a verification that was not stopped.
    """

    def __init__(self, env: Mapping[str, str], post: Callable[[Event], None]) -> None:
        self._env = env
        self._post = post
        self._process: Child | None = None

    def start(self, action: Verify) -> None:
        """Begin to verify. Returns at once."""
        words = ("verify", "--background", "--json", "--run-id", action.run_id, "--step", str(action.step))
        try:
            self._process = Child(
                (sys.executable, "-m", "spotguard", *words),
                lambda ended: self._report(action, ended),
                # Not among the words: a store's URL may hold a secret, and `ps` shows words.
                env={**self._env, "SPOTGUARD_STORE": action.store},
                errors=subprocess.PIPE,
            )
        except OSError as error:
            detail = f"{sys.executable}: {error.strerror}"
            self._post(Verified(action.number, "unknown", action.step, detail=detail))

    def pause(self, paused: bool) -> None:
        """Stop the process for as long as a checkpoint is being uploaded, or let it go on."""
        if self._process is not None:
            self._process.signal(signal.SIGSTOP if paused else signal.SIGCONT)

    def stop(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the process, and wait for that."""
        if self._process is not None:
            self._process.close()

    # --- the thread that follows the process ---

    def _report(self, action: Verify, ended: Ended) -> None:
        if not ended.killed:
            self._post(_result(action, ended.output, ended.errors.decode(errors="replace")))


def _result(action: Verify, output: bytes, errors: str) -> Verified:
    try:
        verdicts: list[dict[str, Any]] = json.loads(output)["checkpoints"]
        worst = min(verdicts, key=lambda each: each["status"] == "complete")
        status = _STATUSES.get(worst["status"], "unknown")
        damage = [str(each) for each in worst["damage"]]
        more = f", and {len(damage) - 1} more" if len(damage) > 1 else ""
        detail = f"{clip(damage[0], TEXT)}{more}" if damage else ""
        objects = key_list([str(each) for each in worst["objects"]])
        return Verified(action.number, status, action.step, str(worst["checkpoint"]), detail, objects)
    except (
        ValueError,
        KeyError,
        TypeError,
    ):  # it has printed an error instead, or was killed by somebody else
        last = next(
            (line for line in reversed(errors.splitlines()) if line.strip()), "it was ended from outside"
        )
        detail = clip(last.removeprefix("spotguard: error: "), TEXT)
        return Verified(action.number, "unknown", action.step, detail=detail)
