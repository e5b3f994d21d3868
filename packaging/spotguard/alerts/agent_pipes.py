"""The two pipes between the helper and its agent: the agent's lines in, and reports out. Both are JSON, a line each."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from typing import Any

log = logging.getLogger("spotguard.agent")

#: Bytes of one read, and of an agent's longest line. A longer one is skipped.
_READ, _LONGEST = 256 * 1024, 4 * 1024 * 1024


class AgentLines:
    """The agent's lines, as JSON objects."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest = b""
        self._skips = False
        #: Whether the agent has closed its end.
        self.ended = False

    def read(self) -> list[dict[str, Any]]:
        """Wait for bytes, and return the lines that they complete."""
        data = os.read(self._fd, _READ)
        self.ended = not data
        *complete, self._rest = (self._rest + data).split(b"\n")
        if self._skips and complete:
            self._skips = False
            del complete[0]
        if len(self._rest) > _LONGEST:
            self._rest, self._skips = b"", True
        return [line for text in complete if (line := _parsed(text)) is not None]


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        log.warning("the helper of alerts cannot read a line of its agent's [SG113]")
        return None
    return line if isinstance(line, dict) else None


class AgentReports:
    """The reports to the agent. One that the pipe does not take is left out: the next one has everything again."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest = b""

    def write(self, body: Mapping[str, Any]) -> None:
        line = json.dumps(body, separators=(",", ":")).encode() + b"\n"
        try:
            self._rest = self._rest[os.write(self._fd, self._rest) :]
            if not self._rest:
                self._rest = line[os.write(self._fd, line) :]
        except OSError:  # full, or the agent is gone, which stdin tells
            return
