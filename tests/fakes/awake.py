"""For a test's program that says something, and then blocks in a read or a pause until a signal comes.

A signal that lands between the program's last Python instruction and its blocking call sets CPython's flag and interrupts
nothing: the handler waits until the call returns, which may be never. Whoever sends the signal at the program's word meets
that gap (one Ctrl-C in fourteen, on a busy machine). This wakes the call every 50 ms, and the handler runs.

To be pasted behind any fork, which takes no timer with it.
"""

from __future__ import annotations

STAYS_AWAKE = """
import atexit, signal
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)  # Python gives up its handlers before it is gone
"""
