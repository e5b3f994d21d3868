"""Many lives of one training process under one launcher, as a test kills them and begins them again."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

from spotguard.agent.ipc import control
from tests.e2e.processes import Running
from tests.e2e.trainee import LIVES, Trainee


class Lives:
    """`programs/lives.py`: each life must begin bit for bit at the newest checkpoint that the store holds whole.

    Which one that is, the test reads from the store's names by itself.
    """

    def __init__(self, trainee: Trainee, running: Running) -> None:
        self.trainee = trainee
        self.running = running
        self.pid = 0

    @classmethod
    def under_run(cls, trainee: Trainee, options: str = "--every off") -> Lives:
        return cls(trainee, trainee.guarded(options, steps=len(trainee.digests) - 1, program=LIVES))

    @classmethod
    def under(cls, trainee: Trainee, socket: Path) -> Lives:
        """With no `run` over it: it is given the socket of an agent that may come and go."""
        command = trainee.command(len(trainee.digests) - 1, LIVES)
        env = {"SPOTGUARD_SOCKET": str(socket), "SPOTGUARD_STORE": trainee.machine.url}
        return cls(
            trainee,
            trainee.machine.start(*command, **env, SPOTGUARD_RUN_ID="job", SPOTGUARD_EVERY="off"),
        )

    def again(self) -> int:
        """The next life, up to where it stands restored; its step."""
        newest = self.trainee.newest()
        self._begin()
        step = self.trainee.begun(self.running)
        assert step == newest, f"step {step} was restored, {newest} is the newest whole one"
        return step

    def killed_at_its_beginning(self) -> None:
        """A life that ends as soon as it has claimed its attempt, in or around its restore."""
        self._begin()
        self.running.out.until("^registered")
        self.kill()

    def _begin(self) -> None:
        self.trainee.machine.outlast_announcements()
        self.running.say("again")
        self.pid = int(self.running.out.until(r"^life (\d+)$")[1])

    def doom(self, count: int, *pids: int) -> None:
        self.running.say(f"doom {count} {' '.join(map(str, pids))}")
        self.running.out.until("^doomed$")

    def kill(self) -> None:
        self.trainee.machine.kill(self.pid)
        self.killed()

    def killed(self) -> None:
        assert int(self.running.out.until(r"^ended (.+)$")[1]) == -signal.SIGKILL

    def close(self) -> None:
        self.running.hush()
        assert self.running.ended() == 0


class Drill(threading.Thread):
    """A notice on demand, asked for on a thread: its last answer comes when it has ended."""

    def __init__(self, socket: Path, *, preempt: bool = False, window: float = 20.0) -> None:
        super().__init__()
        self.bodies: list[dict[str, object]] = []
        self.error = ""
        self._asked = (socket, window, preempt)
        self.start()

    def run(self) -> None:
        socket, window, preempt = self._asked
        try:
            for body in control.drill(socket, window=window, preempt=preempt):
                self.bodies.append(body)
        except control.AgentError as error:  # it was killed: that is what some tests are about
            self.error = str(error)
