"""Processes that play jobs of several ranks, one job after the other. See `programs/member.py`."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spotguard.hooks.checkpoints.catalog import Whole, find_whole
from spotguard.providers.stores.opening import open_store

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parent / "programs" / "member.py"
#: Seconds for one job.
TIMEOUT = 60.0

Event = Mapping[str, Any]
Said = dict[str, Any]


def event(rank: int, step: int, phase: str, what: str = "preempt", **more: Any) -> Event:
    return {"rank": rank, "step": step, "phase": phase, "what": what, **more}


class Gang:
    """So many processes; what they say to nobody is in `folder`."""

    def __init__(self, size: int, folder: Path, **env: str) -> None:
        self._environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'packaging'}:{ROOT}",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "SPOTGUARD_EVERY": "off",
            "SPOTGUARD_SOCKET": "",
            **env,
        }
        self._logs = [folder / f"rank{rank}.err" for rank in range(size)]
        #: They have not said what became of their last job, or said it wrong.
        self._broken = False
        self.members = [self._start(rank) for rank in range(size)]

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        with self._logs[rank].open("wb") as err:
            return subprocess.Popen(
                [sys.executable, str(PROGRAM), str(rank)],
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
            )

    def close(self) -> None:
        for each in self.members:
            _end(each)

    def begin(self, world: int, way: str, store: Path, *events: Event, **scenario: Any) -> None:
        """A job of so many ranks. `total` steps; `saves` by hand after these; `digests` after each."""
        told = {
            "world": world,
            "way": way,
            "store": f"file://{store}",
            "run": "r",
            "port": _free_port(),
            "total": 12,
            "events": events,
            "optimizers": 1,
            "saves": [],
            "digests": False,
            "step": None,
            **scenario,
        }
        for rank, each in enumerate(self.members):
            if self._broken or each.poll() is not None:  # one test's failure is not the next one's
                _end(each)
                self.members[rank] = self._start(rank)
        self._broken = True
        line = json.dumps(told).encode() + b"\n"
        for each in self.members[:world]:
            assert each.stdin is not None
            each.stdin.write(line)
            each.stdin.flush()

    def ended(self, ranks: Sequence[int]) -> list[Said]:
        """What became of these."""
        said = [self._hear(rank) for rank in ranks]
        self._broken = False
        return said

    def play(self, world: int, way: str, store: Path, *events: Event, **scenario: Any) -> list[Said]:
        self.begin(world, way, store, *events, **scenario)
        return self.ended(range(world))

    def _hear(self, rank: int) -> Said:
        pipe = self.members[rank].stdout
        assert pipe is not None
        if not select.select([pipe], [], [], TIMEOUT)[0]:
            for each in self.members:
                if each.poll() is None:
                    each.send_signal(signal.SIGUSR1)  # where its threads are
            select.select([], [], [], 1.0)
            raise AssertionError(f"rank {rank} says nothing:\n{self.errors()}")
        line = pipe.readline()
        assert line, f"rank {rank} is gone:\n{self.errors()}"
        said: Said = json.loads(line)
        return said

    def errors(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()[-6000:]}" for log in self._logs)


def newest(store: Path) -> Whole | None:
    return find_whole(open_store(f"file://{store}"), "r")


def marked(store: Path) -> list[str]:
    """The checkpoints that bear a marker."""
    return sorted(path.parent.name for path in store.glob("r/checkpoints/*/COMMIT.json"))


def losses(said: Sequence[Said]) -> dict[int, float]:
    """Of each step, over all ranks."""
    return {int(step): sum(each["losses"][step] for each in said) / len(said) for step in said[0]["losses"]}


def _end(member: subprocess.Popen[bytes]) -> None:
    member.kill()
    member.wait()
    for pipe in (member.stdin, member.stdout):
        assert pipe is not None
        pipe.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
