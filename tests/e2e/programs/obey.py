"""A command that never heard of spotguard: `obey.py TERM=4 USR1=…` says each signal, and ends where a code is given."""

from __future__ import annotations

import os
import queue
import signal
import sys
import time


def tell(line: str) -> None:
    os.write(1, line.encode() + b"\n")


def main(words: list[str]) -> int:
    arrived: queue.SimpleQueue[int] = queue.SimpleQueue()
    codes = dict(word.split("=") for word in words)
    for name in codes:
        signal.signal(signal.Signals[f"SIG{name}"], lambda signum, frame: arrived.put(signum))
    tell(f"ready {os.getpid()}")
    while True:
        # A signal that comes just before `get` blocks interrupts nothing: it is heard at the next look.
        while arrived.empty():
            time.sleep(0.02)
        name = signal.Signals(arrived.get()).name.removeprefix("SIG")
        tell(name)
        if code := codes[name]:
            return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
