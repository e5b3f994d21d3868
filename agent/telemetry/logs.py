"""The agent's log: one line for each thing that happened, on stderr, for a person or as JSON.

stdout belongs to the command alone. Nothing here is configured on import, and nobody who logs waits for whoever
reads: a thread of its own writes (`log_thread`).
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from .log_thread import LogThread

ROOT = "spotguard"
#: Of the Elastic Common Schema: the version whose names the lines of `--json-log` have.
_ECS = "8.11.0"


class PlainFormatter(logging.Formatter):
    """`spotguard 12:03:04 text`; the level is named where something is wrong."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        level = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
        return f"{ROOT} {at} {level}{record.getMessage()}"


class JsonFormatter(logging.Formatter):
    """One JSON object in a line, with the names of the Elastic Common Schema: an ELK stack takes it as it is. What the event
    carries (`extra={"fields": …}`) is below `spotguard`, a name of ours, so that it meets no field of the schema's."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).replace(tzinfo=None)
        # The first three in this order, so that a person can read the line too (ECS logging specification).
        body: dict[str, Any] = {
            "@timestamp": f"{at.isoformat(timespec='milliseconds')}Z",
            "log.level": record.levelname.lower(),
            "message": record.getMessage(),
            "ecs.version": _ECS,
            "log.logger": record.name,
            "process.pid": record.process,
            "service.name": ROOT,
        }
        if record.exc_info and (error := record.exc_info[1]) is not None:
            body["error.type"] = type(error).__name__
            body["error.message"] = str(error)
            body["error.stack_trace"] = self.formatException(record.exc_info)
        if fields := getattr(record, "fields", None):
            body[ROOT] = fields
        return json.dumps(body, default=str)


class AgentLog(logging.Handler):
    """Makes lines of records where they are logged, and has them written elsewhere."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._scribe = LogThread(stream, self._missing)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:  # noqa: BLE001 (logging's own way would write to stderr from here)
            line = f"{ROOT}: a line of {record.name} cannot be made: {type(error).__name__}: {record.msg}"
        self._scribe.take(line)

    def _missing(self, count: int) -> str:
        text = "%d lines were dropped here: nobody was reading"
        return self.format(logging.LogRecord(__name__, logging.WARNING, "", 0, text, (count,), None))

    def flush(self) -> None:
        """Wait until everything is written, or a moment where nobody reads."""
        self._scribe.flush()

    def close(self) -> None:
        self._scribe.close()
        super().close()


def configure(*, json_log: bool, level: int = logging.INFO, stream: TextIO | None = None) -> logging.Handler:
    """Send everything that spotguard logs to stderr. Returns the handler, for `remove`.

    A handler that is not removed is flushed and closed at Python's exit, as logging does it with each.
    """
    handler = AgentLog(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if json_log else PlainFormatter())
    logger = logging.getLogger(ROOT)
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    return handler


def flush() -> None:
    """Have everything written that was logged, as far as somebody reads: what comes next is said after it."""
    for handler in logging.getLogger(ROOT).handlers:
        handler.flush()


def remove(handler: logging.Handler) -> None:
    logger = logging.getLogger(ROOT)
    logger.removeHandler(handler)
    handler.close()
    logger.setLevel(logging.NOTSET)
    logger.propagate = True
