"""Signals to `spotguard` itself become events, and nothing else happens in a handler.

The kernel may hand a signal to any thread. Python then runs its handler in the main thread "soon", but does not
wake a main thread that waits on a queue (seen: SIGCONT after Ctrl-Z, taken by the reaper's thread, was acted on
with the next event, which never came). So the handlers are empty, and the byte that Python's own C handler
writes at once (`set_wakeup_fd`) is read by a thread that posts. The other ways cost more: `signalfd` is not in
the standard library, and blocking signals to take them in a thread would hand the mask to every command.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

from ..events import PASSED_ON, Event, Signalled

#: What the pure machine decides about: a notice, an end at once.
DECIDED = frozenset({signal.SIGTERM, signal.SIGINT})


#: What was set to ignored (by `nohup`, a shell's `&`, a `trap ''`) says "not for you": it stays so, for us and for
#: the command, which could not tell that it is to ignore what we handle. Not SIGTERM, which is a notice to us;
#: nor SIGCONT, which wakes whoever ignores it too.
_LEFT_IGNORED = (DECIDED | PASSED_ON) - {signal.SIGTERM, signal.SIGCONT}


class Signals:
    """While this stands, each signal is posted as `Signalled`, in order, from a thread of its own.

    Entered and left in the main thread (as `signal.signal` asks).
    """

    def __init__(self, post: Callable[[Event], None]) -> None:
        self._post = post
        self._before: dict[signal.Signals, signal._HANDLER] = {}
        self._reading = self._writing = self._fd_before = -1
        self._thread = threading.Thread(target=self._read, name="spotguard-signals", daemon=True)

    def __enter__(self) -> Signals:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)  # a handler never waits
        self._thread.start()
        # A full pipe (65,536 signals unread) loses some; a warning from inside a handler helps nobody.
        self._fd_before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for signum in sorted(DECIDED | PASSED_ON):
            before = signal.getsignal(signum)
            if before is signal.SIG_IGN and signum in _LEFT_IGNORED:
                continue
            self._before[signum] = before or signal.SIG_DFL  # None: a handler of C code
            signal.signal(signum, _nothing)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for signum, before in self._before.items():
            signal.signal(signum, before)
        signal.set_wakeup_fd(self._fd_before)
        os.close(self._writing)  # the thread reads to the end, so nothing that came is lost
        self._thread.join()
        os.close(self._reading)

    def _read(self) -> None:
        while data := os.read(self._reading, 512):
            for number in data:
                if number in self._before:  # other parts of the process may have handlers of their own
                    self._post(Signalled(number))


def _nothing(signum: int, frame: FrameType | None) -> None:
    """The byte is on its way already."""
