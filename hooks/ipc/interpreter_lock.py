"""Have this package's threads get the interpreter's lock (GIL) in time, whatever the training thread does.

A thread that waits for the lock asks for it after the switch interval, 5 ms. It starts to count anew each time the holder
releases the lock for a moment (`take_gil`, Python/ceval_gil.c). A training thread that releases it every millisecond and
takes it back at once, as one that reads lines does, keeps a single waiting thread out: 18.9 s until the first byte, measured.
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

#: Its default action is none, so that a message harms nobody whose handler is gone. Go's runtime interrupts by it, too.
_SIGNAL = signal.SIGURG
#: Seconds for which the training thread stands aside for the listener, which reads and answers meanwhile.
_ASIDE = 0.005
#: The switch interval while somebody is in a hurry, in seconds. The kernel's timers add 0.05 ms. Told to first byte, beside a
#: main thread that holds the lock for 1.2 ms at a time: 67 ms at 0.01, 33 at 0.1, 18 at 0.5. At 0.5 one that holds it for
#: 0.25 ms let no save begin in a minute.
_HURRIED = 1e-4

#: Guards what follows. The signal's handler never takes it: it may have interrupted whoever holds it.
_lock = threading.Lock()
_hurried: set[str] = set()
#: The interval before the first was in a hurry.
_usual = 0.0


def stand_aside() -> None:
    """Have the main thread release the lock at each message of an `announced` socket.

    For a main thread that trains. One that waits for signals, as a program with `on_notice` may, takes ours for its own.
    Does nothing off the main thread, where no handler can be set, and where the program handles the signal itself.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(_SIGNAL) == signal.SIG_DFL:
        signal.signal(_SIGNAL, _release)
        signal.siginterrupt(_SIGNAL, False)


def _release(signum: int, frame: FrameType | None) -> None:
    time.sleep(_ASIDE)


def announce(connection: socket.socket) -> None:
    """Have the kernel signal this process when the socket has something to read."""
    if signal.getsignal(_SIGNAL) is _release:
        fcntl.fcntl(connection, fcntl.F_SETSIG, _SIGNAL)
        fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)


def hurry(why: str) -> None:
    """From here on a thread that waits for the lock asks for it at once."""
    global _usual
    with _lock:
        if not _hurried:
            _usual = sys.getswitchinterval()
        _hurried.add(why)
        sys.setswitchinterval(_HURRIED)


def relax(why: str) -> None:
    """The switch interval is again what it was, unless somebody else is in a hurry."""
    with _lock:
        if why in _hurried:
            _hurried.remove(why)
            if not _hurried:
                sys.setswitchinterval(_usual)


def forget() -> None:
    """In a forked child: nobody is in a hurry there, and a thread that it has not may hold what guards that."""
    global _lock
    _lock = threading.Lock()
    for why in tuple(_hurried):
        relax(why)
