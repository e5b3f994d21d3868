"""The supervisor under the smallest loop that can drive it, as a program: `guardian.py REPORT_FD COMMAND...`.

Every signal is reported and passed on; the command's end is reported and becomes the exit code. SIGQUIT makes the
loop itself fail.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
from contextlib import ExitStack

from spotguard.agent.events import CommandEnded, Event, Signalled
from spotguard.agent.process.signals import Signals
from spotguard.agent.process.supervisor import Supervisor


def main(report: int, command: list[str]) -> int:
    def say(line: str) -> None:
        os.write(report, f"guardian: {line}\n".encode())

    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    with ExitStack() as stack:
        stack.enter_context(Signals(events.put))
        supervisor = Supervisor(command, env=os.environ, post=events.put)
        stack.callback(supervisor.close)
        if os.environ.get("SIGNAL_FIRST"):
            # The signal comes to this process before there is a command, and is acted on before there is one.
            os.kill(os.getpid(), int(os.environ["SIGNAL_FIRST"]))
            event = events.get()
            assert isinstance(event, Signalled)
            supervisor.signal(event.signum)
        say(f"started {supervisor.start()} as {os.getpid()}")
        while True:
            match events.get():
                case Signalled(signal.SIGQUIT):
                    raise RuntimeError("the loop fails")
                case Signalled(signum):
                    say(signal.Signals(signum).name)
                    supervisor.signal(signum)
                case CommandEnded(_, returncode):
                    say(f"ended {returncode}")
                    return returncode if returncode >= 0 else 128 - returncode


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
