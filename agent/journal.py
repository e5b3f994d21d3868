"""The agent's log: one line for each thing that happened, on stderr, for a person or as JSON.

stdout belongs to the command alone. Nothing here is configured on import.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

ROOT = "spotguard"


class PlainFormatter(logging.Formatter):
    """`spotguard 12:03:04 text`; the level is named where something is wrong."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        level = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
        return f"{ROOT} {at} {level}{record.getMessage()}"


class JsonFormatter(logging.Formatter):
    """One JSON object in a line: time, level, text, and what the event carries (`extra={"fields": …}`)."""

    def format(self, record: logging.LogRecord) -> str:
        body: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage(),
        }
        if record.exc_info:
            body["error"] = self.formatException(record.exc_info)
        return json.dumps(body | getattr(record, "fields", {}), default=str)


def configure(*, json_log: bool, level: int = logging.INFO, stream: TextIO | None = None) -> logging.Handler:
    """Send everything that spotguard logs to stderr. Returns the handler, for `remove`."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if json_log else PlainFormatter())
    logger = logging.getLogger(ROOT)
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    return handler


def remove(handler: logging.Handler) -> None:
    logger = logging.getLogger(ROOT)
    logger.removeHandler(handler)
    logger.propagate = True
