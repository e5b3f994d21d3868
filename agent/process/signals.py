"""Signals to `spotguard` itself, turned into events. A signal handler does nothing else.

The kernel may deliver a signal to any thread. Python then runs its handler in the main thread "soon", but does not wake a
main thread that waits on a queue. (Seen: the reaper's thread took SIGCONT after Ctrl-Z. The main thread would have acted on
it with the next event, which never came.) So the handlers are empty. Python's own C handler writes a byte at once
(`set_wakeup_fd`); a thread reads the byte and posts the event. The other ways cost more: `signalfd` is not in the standard
library, and every command would inherit the mask of blocked signals.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

from ..events import PASSED_ON, Event, Signalled

#: Signals that the pure machine decides about: SIGTERM is a notice, SIGINT an end at once.
DECIDED = frozenset({signal.SIGTERM, signal.SIGINT})


#: Signals that stay ignored if they were ignored before (by `nohup`, a shell's `&`, a `trap ''`), for the agent and for the
#: command. The command could not see that it should ignore a signal that the agent handles. SIGTERM is an exception, because
#: it is a notice. SIGCONT is one, because it wakes even a process that ignores it.
_LEFT_IGNORED = (DECIDED | PASSED_ON) - {signal.SIGTERM, signal.SIGCONT}


class Signals:
    """A context in which a thread posts each signal as `Signalled`, in order.

    The main thread enters and leaves it (`signal.signal` requires that).
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
        # A full pipe (65,536 signals unread) loses some; a warning from inside a handler would not help.
        self._fd_before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for signum in sorted(DECIDED | PASSED_ON):
            before = signal.getsignal(signum)
            if before is signal.SIG_IGN and signum in _LEFT_IGNORED:
                continue
            self._before[signum] = before or signal.SIG_DFL  # None: C code installed the handler
            signal.signal(signum, _nothing)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for signum, before in self._before.items():
            signal.signal(signum, before)
        signal.set_wakeup_fd(self._fd_before)
        os.close(self._writing)  # the thread reads to the end, so no signal is lost
        self._thread.join()
        os.close(self._reading)

    def _read(self) -> None:
        while data := os.read(self._reading, 512):
            for number in data:
                if number in self._before:  # other parts of the process may have handlers of their own
                    self._post(Signalled(number))


def _nothing(signum: int, frame: FrameType | None) -> None:
    """Do nothing: Python's C handler has already written the byte."""
