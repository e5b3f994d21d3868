"""A sharded job on several machines, as whoever started it sees it: what to type on each, and what must be said."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.machines import Node, Rack
from tests.e2e.processes import TIMEOUT, Running

PROGRAM = Path(__file__).parent / "programs" / "sharded.py"
#: What torchrun waits for, in seconds: no node more comes; one that is silent is gone (three times this); and all of it.
_WAITS = "last_call_timeout=1,keep_alive_interval=1,join_timeout=60"
#: A store in which launchers meet, on a machine that has no part in the job.
MEETING = """
import signal, torch.distributed as d
store = d.TCPStore("0.0.0.0", 29400, is_master=True, wait_for_workers=False)
print("here", flush=True)
signal.pause()
"""


class Sharded:
    """`programs/sharded.py` on each node below its own `spotguard run -- torchrun`."""

    def __init__(
        self,
        rack: Rack,
        nodes: str,
        *,
        ranks: int = 1,
        restarts: int = 0,
        apart: bool = False,
        width: int = 0,
    ) -> None:
        """`nodes` and `restarts` as torchrun has them, with so many `ranks` on each. The launchers meet on the rack's first node,
        which has no part in the job where they meet `apart`. With a `width` all ranks hold everything."""
        self.rack = rack
        self._ranks = ranks
        self._width = [f"{width}"] * bool(width)
        #: Of each rank, where it was the last time that somebody looked at the `world`.
        self.places: dict[int, Node] = {}
        self.runs: dict[Node, Running] = {}
        self._limit = rack.folder / "limit"
        self._limit.write_text("0")
        self._command = [
            *(
                str(Path(sys.executable).with_name("torchrun")),
                "--nnodes",
                nodes,
                "--nproc-per-node",
                f"{ranks}",
            ),
            *("--max-restarts", f"{restarts}"),
            *("--rdzv-id", "job", "--rdzv-backend", "c10d", "--rdzv-endpoint", "node1:29400"),
            *("--rdzv-conf", _WAITS + ",is_host=false" * apart, str(PROGRAM), "100000", str(self._limit)),
            *self._width,
        ]
        if apart:
            rack.add().start(sys.executable, "-c", MEETING).out.until("^here$")

    def meet_on(self, node: Node) -> None:
        """There, from the next `begin` on."""
        self._command = [re.sub("^node[0-9]+:", f"{node.name}:", word) for word in self._command]

    def begin(self, *nodes: Node, options: str = "--every off", **env: str) -> None:
        for node in nodes:
            self.runs[node] = node.guarded(options, *self._command, **env)

    def allow(self, step: int) -> None:
        """Training stands when it has taken so many steps."""
        self._limit.write_text(str(step))

    def world(self, *nodes: Node) -> Node:
        """Wait until these make up the job. Which of them has rank 0."""
        ranks, world = {}, len(nodes) * self._ranks
        for node in [each for each in nodes for _ in range(self._ranks)]:
            said = self.runs[node].out.until(rf"^rank (\d+) of {world} on {node.name}$")
            ranks[int(said[1])] = node
        assert sorted(ranks) == list(range(world))
        self.places = ranks
        return ranks[0]

    def restored(self, first: Node) -> int:
        """The step at which it goes on, with the state that it had there, whatever the world was then."""
        said = self.runs[first].out.until(r"^restored (\d+) (\w+)$")
        step, digest = int(said[1]), said[2]
        before = {digest for at, _, digest in self._steps() if at == step}
        assert not before or digest in before, (
            f"step {step} was restored otherwise than it was said: {before}"
        )
        return step

    def stepped(self, first: Node, upto: int) -> None:
        """Read on to the line of that step."""
        self.runs[first].out.until(rf"^step {upto} ")

    def _steps(self) -> list[tuple[int, float, str]]:
        """Step, loss, and digest of the whole state after it: what was said of all steps so far, by whichever node."""
        texts = "".join(running.out.text for running in self.runs.values())
        found = re.findall(r"^step (\d+) ([\d.]+) (\w+)$", texts, re.MULTILINE)
        return [(int(step), float(loss), digest) for step, loss, digest in found]

    def committed(self) -> list[str]:
        """The checkpoints that somebody has seen whole."""
        return sorted(marker.parent.name for marker in self.rack.store.glob("job/checkpoints/*/COMMIT.json"))

    def as_if_alone(self) -> None:
        """Each loss that was said is that of one process which nobody disturbed, but for the order of sums."""
        steps = self._steps()
        last = max(step for step, _, _ in steps)
        done = subprocess.run(
            [sys.executable, str(PROGRAM), str(last), "-", *self._width],
            capture_output=True,
            text=True,
            check=True,
            timeout=TIMEOUT,
        )
        lines = (line.split() for line in done.stdout.splitlines() if line.startswith("step"))
        alone = {int(step): float(loss) for _, step, loss, _ in lines}
        wrong = [said for said in steps if said[1] != pytest.approx(alone[said[0]], rel=1e-3)]
        assert not wrong
