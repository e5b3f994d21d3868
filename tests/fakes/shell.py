"""The part of an interactive shell that job control is about, as a program: `shell.py TTY ORDERS REPORT JOB...`.

The job is started in a process group of its own, in the front ("run") or behind ("run &"), when the descriptor
ORDERS says so; "fg" and "bg" continue it; "cont" brings it to the front as bash does with a job that runs:
without SIGCONT. What the job did is reported: "shell: stopped", "shell: exited 3", and who then holds the terminal.
"""

from __future__ import annotations

import os
import signal
import sys


class Shell:
    def __init__(self, tty: str, orders: int, report: int, job: list[str]) -> None:
        # Opening a terminal gives a session leader without one its controlling terminal (tty(4)).
        self.tty = os.open(tty, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(self.tty, stream)
        # What an interactive shell ignores for itself, and gives back to its jobs.
        self.ignored = [signal.SIGTTOU, signal.SIGTTIN, signal.SIGTSTP, signal.SIGINT, signal.SIGQUIT]
        for signum in self.ignored:
            signal.signal(signum, signal.SIG_IGN)
        self.orders, self.report, self.job, self.pid = os.fdopen(orders), report, job, 0

    def say(self, line: str) -> None:
        os.write(self.report, f"shell: {line}\n".encode())

    def front(self, group: int) -> None:
        os.tcsetpgrp(self.tty, group)

    def start(self, *, front: bool) -> None:
        """The job begins where it belongs, as below a real shell. Put there after it had begun, it would need a SIGCONT, which
        on a busy machine came after the Ctrl-Z that it was to obey."""
        placed, place = os.pipe()
        os.set_inheritable(placed, True)
        job = ["/bin/bash", "-c", f'read -r <&{placed}; exec {placed}<&-; exec "$@"', "bash", *self.job]
        self.pid = os.posix_spawn(job[0], job, os.environ, setpgroup=0, setsigdef=self.ignored)
        if front:
            self.front(self.pid)
        os.write(place, b"\n")
        os.close(place)
        os.close(placed)

    def obey(self) -> None:
        for order in self.orders:
            word = order.strip()
            if word in ("run", "run &"):
                self.start(front=word == "run")
            if word in ("fg", "cont"):
                self.front(self.pid)
            if word in ("fg", "bg"):
                os.killpg(self.pid, signal.SIGCONT)
            if word in ("run", "fg", "cont", "wait"):
                self.wait()
            else:
                self.say(f"done {word}")

    def wait(self) -> None:
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        holder = os.tcgetpgrp(self.tty)
        whose = {self.pid: "the job", os.getpid(): "the shell"}.get(holder, "another")
        self.front(os.getpid())
        if os.WIFSTOPPED(status):
            self.say(f"stopped, terminal held by {whose}")
        elif os.WIFSIGNALED(status):
            self.say(f"killed {os.WTERMSIG(status)}, terminal held by {whose}")
        else:
            self.say(f"exited {os.WEXITSTATUS(status)}, terminal held by {whose}")


if __name__ == "__main__":
    Shell(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]).obey()
