"""Where the members of a gang are born: `nursery.py FD`. Importing torch takes seconds and forking a process that has it
takes milliseconds: so it is imported once, and a member that was killed costs next to nothing.

For each message on the socket FD, a rank and three descriptors, one process; the answer is its pid.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from types import FrameType

from tests.hooks.ranks.programs import member


def bury(number: int, frame: FrameType | None) -> None:
    """Those that have ended: whoever waits for one's end looks for its pid."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return  # none is left


def main() -> None:
    orders = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, bury)
    gc.freeze()
    while True:
        rank, pipes, _, _ = socket.recv_fds(orders, 16, 3)
        if not rank:
            return
        if (pid := os.fork()) == 0:
            orders.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, pipe in enumerate(pipes):
                os.dup2(pipe, number)
                os.close(pipe)
            member.main(int(rank))
            return
        for pipe in pipes:
            os.close(pipe)
        orders.send(str(pid).encode())


if __name__ == "__main__":
    main()
