"""A sharded job on several machines, as whoever started it sees it: what to type on each, and what must be said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.machines import Node, Rack
from tests.e2e.processes import TIMEOUT, Running

PROGRAM = Path(__file__).parent / "programs" / "sharded.py"
#: What torchrun waits for, in seconds: no node more comes; one that is silent is gone; and all of it.
_WAITS = "last_call_timeout=1,keep_alive_interval=1,join_timeout=60"


class Sharded:
    """`programs/sharded.py`, one rank on each node, each below its own `spotguard run -- torchrun`."""

    def __init__(self, rack: Rack, nodes: str, *, host: str = "node1", steps: int = 100_000) -> None:
        """`nodes` as torchrun has it; `host` is where the launchers meet."""
        self.rack = rack
        self.runs: dict[Node, Running] = {}
        self._limit = rack.folder / "limit"
        self._limit.write_text("0")
        self._command = [
            *(str(Path(sys.executable).with_name("torchrun")), "--nnodes", nodes, "--nproc-per-node", "1"),
            *("--rdzv-id", "job", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{host}:29400"),
            *("--rdzv-conf", _WAITS, str(PROGRAM), str(steps), str(self._limit)),
        ]
        #: step -> what rank 0 said of it: the loss, and the digest of the whole state after it.
        self.losses: dict[int, float] = {}
        self.digests: dict[int, str] = {}

    def begin(self, *nodes: Node, options: str = "--every off") -> None:
        for node in nodes:
            self.runs[node] = node.guarded(options, *self._command)

    def allow(self, step: int) -> None:
        """Training stands when it has taken so many steps."""
        self._limit.write_text(str(step))

    def world(self, *nodes: Node) -> Node:
        """Wait until these make up the job. Which of them has rank 0."""
        ranks = {}
        for node in nodes:
            said = self.runs[node].out.until(rf"^rank (\d+) of {len(nodes)} on {node.name}$")
            ranks[int(said[1])] = node
        assert sorted(ranks) == list(range(len(nodes)))
        return ranks[0]

    def restored(self, first: Node) -> int:
        """The step at which it goes on, with the state that it had there, whatever the world was then."""
        said = self.runs[first].out.until(r"^restored (\d+) (\w+)$")
        step = int(said[1])
        assert self.digests.setdefault(step, said[2]) == said[2], f"step {step} was restored otherwise"
        return step

    def stepped(self, first: Node, upto: int) -> None:
        """Read on to the line of that step."""
        step = 0
        while step < upto:
            said = self.runs[first].out.until(r"^step (\d+) ([\d.]+) (\w+)$")
            step = int(said[1])
            self.losses[step], self.digests[step] = float(said[2]), said[3]

    def as_if_alone(self) -> None:
        """Each loss that was said is that of one process which nobody disturbed, but for the order of sums."""
        last = max(self.losses)
        done = subprocess.run(
            [sys.executable, str(PROGRAM), str(last)],
            capture_output=True,
            text=True,
            check=True,
            timeout=TIMEOUT,
        )
        lines = (line.split() for line in done.stdout.splitlines() if line.startswith("step"))
        alone = {int(step): float(loss) for _, step, loss, _ in lines}
        assert self.losses == {step: pytest.approx(alone[step], rel=1e-3) for step in self.losses}
