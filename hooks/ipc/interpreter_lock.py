"""Timely access to the interpreter's lock (GIL) for spotguard's threads, beside any training thread.

A thread that waits for the lock requests it after the switch interval, 5 ms. The thread restarts that interval each
time the holder releases the lock for a moment (`take_gil`, Python/ceval_gil.c). A training thread that reads lines
releases the lock every millisecond and takes it back at once. Such a thread keeps a single waiting thread out; the
first byte came after 18.9 s (measured).
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType

#: The default action of this signal is none, so a message does no harm if the handler is gone. Go's runtime
#: interrupts by it, too.
_SIGNAL = signal.SIGURG
#: Seconds that the training thread sleeps while the listener reads and answers.
_ASIDE = 0.005
#: Switch interval in seconds while a thread is in a hurry. The kernel's timers add 0.05 ms. From the delivered
#: notice to the first byte, beside a main thread that holds the lock for 1.2 ms at a time: 67 ms at 0.01, 33 at
#: 0.1, 18 at 0.5. At 0.5, a main thread that holds the lock for 0.25 ms let no save begin in a minute.
_HURRIED = 1e-4

#: Guards the variables below. The signal handler never takes this lock: the handler may have interrupted the thread
#: that holds it.
_lock = threading.Lock()
_hurried: set[Hurry] = set()
#: Switch interval before the first hurry.
_usual = 0.0


def stand_aside() -> None:
    """Make the main thread release the lock at each message of an announced socket (`announce`).

    This is for a main thread that trains. A main thread that waits for signals, as a program with `on_notice` may,
    would take this signal for one of its own.

    The call does nothing off the main thread, where Python allows no handler. It does nothing either if the program
    handles the signal itself.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(_SIGNAL) == signal.SIG_DFL:
        signal.signal(_SIGNAL, _release)
        signal.siginterrupt(_SIGNAL, False)


def _release(signum: int, frame: FrameType | None) -> None:
    time.sleep(_ASIDE)


def answer_first() -> None:
    """Have the main thread stand aside now, as a message may have asked it to, before its handler of another signal raises.

    `input()` calls handlers once more behind one that has raised, and a handler that returns beside an exception is a
    SystemError (`builtin_input_impl`, Python/bltinmodule.c).
    """
    if signal.getsignal(_SIGNAL) is _release:
        signal.raise_signal(_SIGNAL)


def announce(connection: socket.socket) -> None:
    """Ask the kernel to signal this process when the socket has something to read."""
    if signal.getsignal(_SIGNAL) is _release:
        fcntl.fcntl(connection, fcntl.F_SETSIG, _SIGNAL)
        fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)


class Hurry:
    """One owner's need for the short switch interval, after which waiting threads request the lock.

    It counts once, however often it begins. The usual interval comes back with the end of the last one.
    """

    def begin(self) -> None:
        global _usual
        with _lock:
            if not _hurried:
                _usual = sys.getswitchinterval()
            _hurried.add(self)
            sys.setswitchinterval(_HURRIED)

    def end(self) -> None:
        with _lock:
            if self in _hurried:
                _hurried.remove(self)
                if not _hurried:
                    sys.setswitchinterval(_usual)


def forget() -> None:
    """Restore the switch interval in a forked child.

    In the child no thread is in a hurry. The lock is replaced, because a thread that the child lacks may hold it.
    """
    global _lock
    _lock = threading.Lock()
    for hurry in tuple(_hurried):
        hurry.end()
