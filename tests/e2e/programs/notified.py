"""A command that saves by itself: `spotguard.on_notice`, and lines on stdin that say what its function does.

return      it has saved        raise WORDS     it could not
"""

from __future__ import annotations

import os
import queue
import signal
import sys

import spotguard

asked: queue.SimpleQueue[list[str]] = queue.SimpleQueue()


def tell(line: str) -> None:
    os.write(1, line.encode() + b"\n")


@spotguard.on_notice
def save(notice: spotguard.Notice) -> None:
    tell(f"notice {notice.kind} {notice.window:.0f} {os.getpid()}")
    word, *rest = asked.get()
    if word == "raise":
        raise OSError(" ".join(rest))


def end(signum: int, frame: object) -> None:
    tell("TERM")
    sys.exit(4)


signal.signal(signal.SIGTERM, end)
tell(f"ready {os.getpid()}")
for line in sys.stdin:
    asked.put(line.split())
while True:
    signal.pause()
