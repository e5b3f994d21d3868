"""The agent's log: one line for each thing that happened, on stderr, for a person or as JSON.

stdout belongs to the command alone. Nothing here is configured on import, and nobody who logs waits for whoever
reads: a thread of its own writes (`LogThread`).
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

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


# A thread that writes lines to stderr, so that nobody else ever waits for whoever should read it.
#
# A stopped pager, a full pipe, Ctrl-S: a write then stands for as long as its reader likes, and with it whoever
# writes. The loop may not stand, and neither may a watcher. O_NONBLOCK is no way out: it belongs to the open file,
# which the command and the shell share with us.

#: Lines that wait at the most: some 100 KiB. An agent says a dozen in an emergency.
_KEPT = 1000
#: A reader that takes nothing for so long is not waited for at the end: the exit code is.
_PATIENCE = 0.2
#: How long it is waited for the thread's turn on a machine that is busy, where the reader does take.
_TURN = 2.0


class LogThread:
    """Takes lines from any thread and never blocks one; what does not fit is counted, and the count is said."""

    def __init__(self, stream: TextIO | None, missing: Callable[[int], str], kept: int = _KEPT) -> None:
        """`missing` makes the line that stands where so many were dropped."""
        self._stream = stream
        self._fd = _descriptor(stream)
        self._missing = missing
        self._kept = kept
        self._lines: deque[str] = deque()
        self._changed = threading.Condition()
        self._dropped = 0
        self._writing = self._stuck = self._stop = False
        self._thread = threading.Thread(target=self._run, name="spotguard-log", daemon=True)
        self._thread.start()

    def take(self, line: str) -> None:
        with self._changed:
            if len(self._lines) >= self._kept:
                self._dropped += 1
                return
            self._say_what_is_missing()
            self._lines.append(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything is written, or until nobody reads."""
        waited = 0.0
        with self._changed:
            while not self._stuck and not self._changed.wait_for(self._done, _PATIENCE):
                waited += _PATIENCE
                # A descriptor that would take more: then it is the thread that had no turn yet.
                self._stuck = waited >= _TURN or not self._takes()

    def close(self) -> None:
        """Write what can be written. A thread that stands in a write is left there: it ends with the process."""
        self.flush()
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        if not self._stuck:
            self._thread.join(_TURN)

    def _done(self) -> bool:
        return not (self._lines or self._writing or self._dropped)

    def _say_what_is_missing(self) -> None:
        if self._dropped:
            self._lines.append(self._missing(self._dropped))
            self._dropped = 0

    def _takes(self) -> bool:
        if self._fd < 0:
            return True
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(0))

    # --- the thread ---

    def _run(self) -> None:
        # `stty tostop` stops a background group that writes to its terminal, and ours is behind the command's.
        # Where the writing thread blocks SIGTTOU the write goes through (POSIX, general terminal interface
        # 11.1.4). In this thread alone: a mask is inherited by what a thread starts.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        while (line := self._next()) is not None:
            self._write(line + "\n")

    def _next(self) -> str | None:
        with self._changed:
            self._writing = False
            self._changed.notify_all()
            if not self._lines:
                self._say_what_is_missing()
            while not self._lines:
                if self._stop:
                    return None
                self._changed.wait()
            self._writing = True
            return self._lines.popleft()

    def _write(self, text: str) -> None:
        try:
            if self._fd < 0 and self._stream is not None:
                self._stream.write(text)
            elif self._fd >= 0:
                # Not through the stream: its lock, held by a write that stands, aborts Python at its end (seen:
                # "could not acquire lock … at interpreter shutdown").
                data = text.encode(errors="backslashreplace")
                while data:
                    data = data[os.write(self._fd, data) :]
        except (OSError, ValueError):
            pass  # the reader is gone, or the stream closed: there is nobody left to be told
        self._stuck = False


def _descriptor(stream: TextIO | None) -> int:
    try:
        return -1 if stream is None else stream.fileno()
    except (OSError, ValueError):  # not a file (io.UnsupportedOperation is both), or closed
        return -1
