"""A job of several ranks, each a process on a machine of its own behind its own link, as whoever measures it holds it."""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotguard.hooks.ipc import protocol

from .agent_end import AgentEnd
from .children import child, line
from .link import Link
from .peers import python_of
from .services import Place

#: Seconds: more than any save takes. A deadline that is near would have it save less.
_LONG = 600.0
#: Where the ranks of a job meet, on the first one's machine; a port for each job.
_PORTS = itertools.count(29500)


@dataclass(frozen=True, slots=True)
class Saved:
    """One save of a job."""

    step: int
    #: From the notice, or the call, to the end of it on the last of the ranks.
    seconds: float
    #: Collectives meanwhile, of the rank that had most.
    collectives: int


class Party:
    """The ranks of one job, in order. Used by one thread."""

    def __init__(self, ranks: Sequence[subprocess.Popen[str]], folder: Path) -> None:
        self._ranks = ranks
        self._folder = folder
        self._held = ExitStack()
        self._agents: list[AgentEnd] = []
        self._ids = itertools.count()
        self._jobs = itertools.count()

    def train(self, layout: str, blocks: int) -> list[int]:
        """Begin a job, and end the last one. Bytes of each rank's tensors."""
        if number := next(self._jobs):
            self._tell("step")  # a step is taken when the last drill is over on all ranks, and not before
        sockets = [self._folder / f"{rank}" / f"{number}.sock" for rank in range(len(self._ranks))]
        self._agents = [self._held.enter_context(AgentEnd(socket)) for socket in sockets]
        found = self._ask([f"train\t{layout}\t{blocks}\t{socket}" for socket in sockets])
        return [each["bytes"] for each in found]

    def save(self, noticed: Collection[int] = ()) -> Saved:
        """Train a step, and save it: ours because the agents of these ranks have a notice, others because they are told."""
        before = self._tell("step")
        step = before[0]["step"]
        started = time.monotonic()
        ended = self._noticed(step, noticed) if noticed else self._told()
        after = self._tell("count")
        counts = [b["collectives"] - a["collectives"] for a, b in zip(before, after, strict=True)]
        return Saved(step, ended - started, max(counts))

    def close(self) -> None:
        self._held.close()

    def _told(self) -> float:
        return max(float(each["at"]) for each in self._tell("save"))

    def _noticed(self, step: int, noticed: Collection[int]) -> float:
        """A drill's notice, so that the processes go on. When the last rank knows of the commit."""
        ids = {rank: f"drill-{next(self._ids)}" for rank in noticed}
        for rank, id in ids.items():
            self._agents[rank].say(protocol.Preempt(id, _LONG, 5.0, "terminate", "benchmark", drill=True))
        ended = 0.0
        for agent in self._agents:
            # A checkpoint of the call before may be told of still.
            done = agent.hear(lambda m: isinstance(m, protocol.Committed) and m.step == step, timeout=_LONG)
            assert isinstance(done, protocol.Committed)
            ended = max(ended, done.monotonic)
        for rank, id in ids.items():
            self._agents[rank].say(protocol.Resume(id))
        return ended

    def _tell(self, word: str) -> list[dict[str, Any]]:
        return self._ask([word] * len(self._ranks))

    def _ask(self, words: Sequence[str]) -> list[dict[str, Any]]:
        """All at once; then the answer of each."""
        for process, word in zip(self._ranks, words, strict=True):
            assert process.stdin is not None
            process.stdin.write(f"{word}\n")
            process.stdin.flush()
        return [json.loads(line(process)) for process in self._ranks]


@contextmanager
def party(way: str, links: Sequence[Link], place: Place, folder: Path) -> Iterator[Party]:
    """So many ranks as there are links, which save in this way, below the name of the folder.

    Raises:
        Unable: its packages cannot be had.
    """
    python = python_of(way)
    meeting = f"tcp://{links[0].address}:{next(_PORTS)}"
    environ = {**place.environ, "GLOO_SOCKET_IFNAME": "saver", "OMP_NUM_THREADS": "1"}
    with ExitStack() as held:
        ranks = []
        for rank, link in enumerate(links):
            home = folder / f"{rank}"
            home.mkdir(mode=0o700, parents=True)
            numbers = [str(rank), str(len(links)), meeting]
            words = ["-m", "benchmarks.shares", way, *numbers, f"{place.url}/{folder.name}", str(home)]
            with link.on("saver"):
                process = child(words, cwd=home, answers=True, python=python, **environ)
                ranks.append(held.enter_context(process))
        found = Party(ranks, folder)
        held.callback(found.close)
        yield found
