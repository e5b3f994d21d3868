"""The agent's log: one line for each event, on stderr, as plain text or as JSON.

stdout belongs to the command alone. Nothing here is configured on import. A thread that logs never waits for the reader of
the log: another thread writes (`LogThread`).
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
#: The version of the Elastic Common Schema whose names the lines of `--json-log` use.
_ECS = "8.11.0"


class PlainFormatter(logging.Formatter):
    """Lines such as `spotguard 12:03:04 text`; the level is shown from WARNING up."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        level = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
        return f"{ROOT} {at} {level}{record.getMessage()}"


class JsonFormatter(logging.Formatter):
    """Lines of one JSON object each, with the names of the Elastic Common Schema, so that an ELK stack takes them unchanged.

    The event's own data (`extra={"fields": …}`) is under the key `spotguard`, which the schema does not use.
    """

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
    """The log handler: the logging thread formats the record, and a `LogThread` writes the line."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._log_writer = LogThread(stream, self._missing)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:  # noqa: BLE001 (logging's own way would write to stderr from here)
            line = f"{ROOT}: a line of {record.name} cannot be made: {type(error).__name__}: {record.msg}"
        self._log_writer.take(line)

    def _missing(self, count: int) -> str:
        text = "%d lines were dropped here: nobody was reading"
        return self.format(logging.LogRecord(__name__, logging.WARNING, "", 0, text, (count,), None))

    def flush(self) -> None:
        """Wait until everything is written, or a moment if nobody reads."""
        self._log_writer.flush()

    def close(self) -> None:
        self._log_writer.close()
        super().close()


def configure(*, json_log: bool, level: int = logging.INFO, stream: TextIO | None = None) -> logging.Handler:
    """Send everything that spotguard logs to stderr, and return the handler for `remove`.

    At Python's exit, `logging` flushes and closes a handler that was not removed.
    """
    handler = AgentLog(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if json_log else PlainFormatter())
    logger = logging.getLogger(ROOT)
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    return handler


def flush() -> None:
    """Wait until every logged line is written, if somebody reads, so that later output follows the log."""
    for handler in logging.getLogger(ROOT).handlers:
        handler.flush()


def remove(handler: logging.Handler) -> None:
    logger = logging.getLogger(ROOT)
    logger.removeHandler(handler)
    handler.close()
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


# A thread that writes lines to stderr, so that no other thread waits for the reader.
#
# With a stopped pager, a full pipe or Ctrl-S, a write blocks until the reader goes on, and the writing thread blocks too.
# Neither the loop nor a poller may block. O_NONBLOCK does not help: it belongs to the open file, which the command and the
# shell share with the agent.

#: The most lines that wait: about 100 KiB. An agent logs a dozen in an emergency.
_KEPT = 1000
#: Seconds. At the end, the agent does not wait for a reader that takes nothing for so long: the exit code must not wait.
_PATIENCE = 0.2
#: Seconds to wait for the thread's turn on a busy machine, if the reader does take lines.
_TURN = 2.0


class LogThread:
    """The writer thread. It takes lines from any thread and never blocks one.

    If too many lines wait, it drops new ones, counts them and writes the count.
    """

    def __init__(self, stream: TextIO | None, missing: Callable[[int], str], kept: int = _KEPT) -> None:
        """Start the thread.

        Args:
            stream: the stream to write to; None: write nothing.
            missing: returns the line that replaces a number of dropped lines.
            kept: the most lines that wait.
        """
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
                # If the descriptor would take more, only the thread has had no turn yet.
                self._stuck = waited >= _TURN or not self._takes()

    def close(self) -> None:
        """Write as many lines as the reader takes. A thread that is blocked in a write ends with the process."""
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
        # `stty tostop` stops a background group that writes to its terminal, and the agent's group is behind the command's.
        # If the writing thread blocks SIGTTOU, the write succeeds (POSIX, general terminal interface 11.1.4). Only this
        # thread blocks it, because programs that a thread starts inherit its mask.
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
                # Not through the stream: a blocked write would hold its lock, and Python would abort at its end. (Seen:
                # "could not acquire lock … at interpreter shutdown".)
                data = text.encode(errors="backslashreplace")
                while data:
                    data = data[os.write(self._fd, data) :]
        except (OSError, ValueError):
            pass  # the reader has gone, or the stream is closed: no output for an error is left
        self._stuck = False


def _descriptor(stream: TextIO | None) -> int:
    try:
        return -1 if stream is None else stream.fileno()
    except (OSError, ValueError):  # not a file (io.UnsupportedOperation is both), or closed
        return -1
