"""The progress of a long read: a bar if stderr is a terminal, else a line in the log now and then.

A read that ends within a few seconds shows nothing. This module decides nothing and starts no thread: the reader calls it, and
it checks the time.
"""

from __future__ import annotations

import logging
import math
import sys
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from ...providers.clock import Clock, SystemClock

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

log = logging.getLogger("spotguard")

#: Seconds before the bar is shown, and between two drawings of it.
_BAR_AFTER, _BAR_EVERY = 1.0, 0.1
#: Seconds before the first line in the log, and between two: a minute's restore makes six.
_LINE_AFTER, _LINE_EVERY = 5.0, 10.0


class ReadProgress:
    """The progress display of one read, used in a `with` statement.

    Args:
        doing: the action, as the log line begins: "restoring step 1200".
        clock: the time.
        stream: the stream for a bar. Default: stderr.
    """

    def __init__(self, doing: str, clock: Clock | None = None, stream: TextIO | None = None) -> None:
        self._doing = doing
        self._now = (clock or SystemClock()).monotonic
        self._stream = sys.stderr if stream is None else stream
        self._live = _terminal(self._stream)
        self._began = self._now()
        self._next = self._began + (_BAR_AFTER if self._live else _LINE_AFTER)
        self._bar: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> ReadProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            with suppress(OSError, ValueError):  # the terminal is gone, as in `show`
                self._bar[0].stop()

    def show(self, done: int, total: int) -> None:
        """Report that `done` of `total` bytes are read. Call it as often as you like: it draws when it is time."""
        now = self._now()
        if now < self._next:
            return
        self._next = now + (_BAR_EVERY if self._live else _LINE_EVERY)
        if not self._live:
            if done < total:
                log.info("%s: %s", self._doing, progress_text(done, total, now - self._began))
            return
        try:
            progress, task = self._bar = self._bar or self._made()
            progress.update(task, completed=done, total=total, refresh=True)
        except (OSError, ValueError):
            self._next = math.inf  # the terminal is gone: draw no more, and let the read go on

    def _made(self) -> tuple[Progress, TaskID]:
        # Imported late: nothing else in a training process needs rich.
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        # The script's own output must not be redirected, and no thread may redraw.
        progress = Progress(
            "{task.description}",
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(file=self._stream),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            get_time=self._now,
        )
        progress.start()
        return progress, progress.add_task(self._doing, total=None)


def _terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # the stream is closed
        return False


def progress_text(done: int, total: int, seconds: float) -> str:
    """Return bytes, rate and remaining seconds in one line."""
    line = f"{done >> 20} of {total >> 20} MiB"
    if not done or seconds <= 0:
        return line
    return f"{line}, {done / seconds / 1e6:.0f} MB/s, {(total - done) * seconds / done:.0f} s left"
