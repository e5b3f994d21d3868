"""A command that saves by itself: `spotguard.on_notice`, and lines on stdin that say what its function does.

return      it has saved        raise WORDS     it could not

With the word "deaf" the first SIGTERM wakes nobody, as one that comes just before the main thread begins to wait.
"""

from __future__ import annotations

import os
import queue
import select
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


def main() -> int:
    # The kernel may hand a signal to any thread, and none but a byte in a pipe then wakes the main one.
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGTERM, lambda signum, frame: None)
    tell(f"ready {os.getpid()}")
    sources = [0, reading]
    deaf = "deaf" in sys.argv
    while True:
        ready = select.select(sources, [], [])[0]
        if reading in ready:
            os.read(reading, 1)
            if not deaf:
                break
            deaf = False
            continue
        if not (lines := os.read(0, 4096)):
            sources.remove(0)
        for line in lines.decode().splitlines():
            asked.put(line.split())
    tell("TERM")
    return 4


if __name__ == "__main__":
    sys.exit(main())
