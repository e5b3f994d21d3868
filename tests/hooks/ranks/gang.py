"""Processes that play jobs of several ranks, one job after the other. See `programs/member.py`."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event as Never
from typing import IO, Any

ROOT = Path(__file__).parents[3]
NURSERY = Path(__file__).parent / "programs" / "nursery.py"
#: Seconds for one job.
TIMEOUT = 100.0
#: Places of a step, with two optimizers.
PHASES = ["loading", "forward", "backward", "optimizer", "between", "before boundary", "evaluation"]
#: Jobs that one process plays. torch lets go of no group's threads: after hundreds they take all the time there is.
JOBS = 25
#: The member that is no rank: it serves the job's store, where no rank does. (Under torchrun it is the launcher.)
HOST = 99

Event = Mapping[str, Any]
Said = dict[str, Any]


def event(rank: int, step: int, phase: str, what: str = "preempt", **more: Any) -> Event:
    return {"rank": rank, "step": step, "phase": phase, "what": what, **more}


def fate(
    rank: int,
    call: str,
    number: int = 0,
    *,
    after: bool = False,
    sign: Path | None = None,
    every: bool = False,
) -> Event:
    """It dies at that call of those that are like this; or is held there, and with `every` at all that follow, until there
    is no `sign` any more."""
    what = "die" if sign is None else "hold"
    return {
        "rank": rank, "call": call, "number": number, "after": after, "what": what, "sign": str(sign), "every": every
    }  # fmt: skip


@dataclass
class Member:
    """One process."""

    pid: int
    #: Whatever its pid is given to later.
    handle: int
    orders: IO[bytes]
    answers: IO[bytes]
    #: Told so far.
    jobs: int = 0

    @property
    def alive(self) -> bool:
        return not select.select([self.handle], [], [], 0)[0]

    @property
    def stands(self) -> bool:
        """Whether each of its threads is stopped: a SIGSTOP is under way for a moment, on another core."""
        try:
            tasks = list(Path(f"/proc/{self.pid}/task").iterdir())
            return all("State:\tT" in (task / "status").read_text() for task in tasks)
        except OSError:  # it ends
            return not self.alive

    def signal(self, number: int) -> None:
        if self.alive:
            signal.pidfd_send_signal(self.handle, number)

    def end(self) -> None:
        self.signal(signal.SIGKILL)
        assert select.select([self.handle], [], [], TIMEOUT)[0]
        os.close(self.handle)
        self.orders.close()
        self.answers.close()


class Gang:
    """As many processes as a job needs; what they say to nobody is in `folder`. They begin when they are needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nursery: subprocess.Popen[bytes] | None = None
        self._members: dict[int, Member] = {}
        #: They have not said what became of their last job, or said it wrong.
        self._broken = False

    def close(self) -> None:
        for each in self._members.values():
            each.end()
        if self._nursery is not None:
            self._births.close()
            self._nursery.kill()  # it holds nothing that has to be put away
            self._nursery.wait(TIMEOUT)

    def pid(self, rank: int) -> int:
        return self._member(rank).pid

    def signal(self, rank: int, number: int) -> None:
        """To one of them, or to the `HOST`; nothing, where it is dead."""
        self._members[rank].signal(number)

    def gone(self, rank: int) -> bool:
        """Whether it has died, by now."""
        return not self._members[rank].alive

    @contextmanager
    def stopped(self, rank: int) -> Iterator[None]:
        """It stands still, and with it what it serves."""
        self.signal(rank, signal.SIGSTOP)
        until(lambda: self.gone(rank) or self._members[rank].stands)
        try:
            yield
        finally:
            self.signal(rank, signal.SIGCONT)

    def end(self, ranks: Sequence[int]) -> None:
        """They are killed, as a launcher does it that has lost one."""
        for rank in ranks:
            self.signal(rank, signal.SIGKILL)
        until(lambda: all(self.gone(rank) for rank in ranks))
        self._broken = False

    def begin(self, world: int, way: str, store: Path, *events: Event, **scenario: Any) -> None:
        """A job of so many ranks.

        Args:
            scenario: `total` steps, `saves` by hand after these, and what else `programs.life` knows; `env` of each rank;
                `hosted`: the job's store is no rank's; `together`: no rank trains before all have restored;
                `seeded`: all generators of all ranks alike; `left`: where a path appears for each rank that is out.
        """
        if self._broken:  # one test's failure is not the next one's
            for rank in list(self._members):
                self._members.pop(rank).end()
        port = _free_port()
        told = {
            "world": world,
            "way": way,
            "store": f"file://{store}",
            "run": "r",
            "port": port,
            "total": 12,
            "events": events,
            "fates": [],
            "optimizers": 1,
            "saves": [],
            "digests": False,
            "step": None,
            "hosted": False,
            "together": False,
            "training": "plain",
            "seeded": False,
            "left": None,
            "env": {},
            **scenario,
        }
        for rank in range(world):
            self._member(rank)
        for rank in self._members:
            os.truncate(self._log(rank), 0)
        self._broken = True
        if told["hosted"]:
            self._member(HOST).jobs += 1
            self._tell(HOST, {"serve": port})
            assert self._hear(HOST) == {"serves": port}
        for rank in range(world):
            self._tell(rank, told)
            self._members[rank].jobs += 1

    def ended(self, ranks: Sequence[int]) -> list[Said]:
        """What became of these."""
        said = [self._hear(rank) for rank in ranks]
        self._broken = False
        return said

    def dead(self, world: int) -> bool:
        """Whether any rank has died, by now."""
        return any(self.gone(rank) for rank in range(world))

    def said(self, ranks: Sequence[int]) -> bool:
        """Whether each of these has said what became of it."""
        answers = [self._members[rank].answers for rank in ranks]
        return len(select.select(answers, [], [], 0)[0]) == len(answers)

    def survivors(self, world: int) -> dict[int, Said]:
        """What became of those that have not died."""
        said = {rank: heard for rank in range(world) if (heard := self._hear(rank, dead=True))}
        self._broken = False
        return said

    def play(self, world: int, way: str, store: Path, *events: Event, **scenario: Any) -> list[Said]:
        self.begin(world, way, store, *events, **scenario)
        return self.ended(range(world))

    def errors(self) -> str:
        logs = [self._log(rank) for rank in sorted(self._members)]
        return "\n".join(f"--- {log.name}\n{log.read_text()[-6000:]}" for log in logs)

    def _member(self, rank: int) -> Member:
        found = self._members.get(rank)
        if found is not None and (found.jobs >= JOBS or not found.alive):
            self._members.pop(rank).end()
            found = None
        if found is None:
            found = self._members[rank] = self._born(rank)
        return found

    def _born(self, rank: int) -> Member:
        if self._nursery is None:
            self._births, theirs = socket.socketpair()
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT)]),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
                "SPOTGUARD_EVERY": "off",
            }
            with theirs:
                self._nursery = subprocess.Popen(
                    [sys.executable, str(NURSERY), str(theirs.fileno())],
                    env=environment,
                    pass_fds=[theirs.fileno()],
                )
            self._births.settimeout(TIMEOUT)
        (orders, its_orders), (answers, its_answers) = os.pipe()[::-1], os.pipe()
        log = os.open(self._log(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        theirs_now = [its_orders, its_answers, log]
        socket.send_fds(self._births, [str(rank).encode()], theirs_now)
        for each in theirs_now:
            os.close(each)
        pid = int(self._births.recv(16))
        return Member(pid, os.pidfd_open(pid), os.fdopen(orders, "wb", 0), os.fdopen(answers, "rb"))

    def _log(self, rank: int) -> Path:
        return self._folder / f"rank{rank}.err"

    def _tell(self, rank: int, what: Mapping[str, Any]) -> None:
        self._members[rank].orders.write(json.dumps(what).encode() + b"\n")

    def _hear(self, rank: int, *, dead: bool = False) -> Said:
        """Its answer; nothing, where it may be `dead` and is."""
        member = self._members[rank]
        if not select.select([member.answers], [], [], TIMEOUT)[0]:
            for each in self._members.values():
                each.signal(signal.SIGUSR1)  # where its threads are
            select.select([], [], [], 1.0)
            raise AssertionError(f"rank {rank} says nothing:\n{self.errors()}")
        line = member.answers.readline()
        if not line and dead:
            # Its pipes are closed before it is gone, and who is not gone is told of the next job.
            assert select.select([member.handle], [], [], TIMEOUT)[0]
            return {}
        assert line, f"rank {rank} is gone:\n{self.errors()}"
        said: Said = json.loads(line)
        return said


@contextmanager
def signs(folder: Path) -> Iterator[Callable[[str], Path]]:
    """Paths of signs, by name. Whoever is held is let go in the end."""
    given: dict[str, Path] = {}
    try:
        yield lambda name: given.setdefault(name, folder / f"{name}.sign")
    finally:
        for path in given.values():
            path.unlink(missing_ok=True)


def until(there: Callable[[], bool]) -> None:
    """Wait for it."""
    nothing, looks = Never(), int(TIMEOUT / 0.01)
    assert any(there() or nothing.wait(0.01) for _ in range(looks)), "it did not come"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
