"""Interruptions of a job of several machines, and what each of them costs: `interrupted.py` on a rack of network namespaces.

Each machine has its own `spotguard run -- torchrun`, its cloud's metadata service, and a limit of memory. The launchers meet on a
machine that has no part in the job. A machine that was preempted or lost is replaced once a drawn time of queueing is over.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from spotguard.hooks.recorder.failure_plan import KINDS, PLACES, FailurePlace, FailurePlan
from tests.e2e.machines import Node, Rack
from tests.e2e.processes import Running
from tests.e2e.sharded import MEETING

from .failures import limited_memory

#: What happens to machines. The other kinds are failures of a rank: those of `spotguard simulate failure`.
PREEMPTION, LOST, CUT = "preemption", "machine lost", "network cut"
#: Seconds: AWS's window, a cut, and the least, the mean and the most of a wait for the next machine.
WINDOW, CUT_FOR, QUEUEING = 120.0, 20.0, (3.0, 12.0, 40.0)
#: Memory of a machine: a launcher, a rank, a loader's worker and an agent take half of it.
_MEMORY = 1300 << 20
#: Seconds in which a job that was interrupted has to train again.
_PATIENCE = 420.0
_SCRIPT = str(Path(__file__).with_name("interrupted.py"))
#: As `docs/how-to/launch/torchrun.md` has them; one restart of torchrun for each failure.
_TORCHRUN = (
    *("-m", "torch.distributed.run", "--nproc-per-node=1", "--max-restarts=100", "--rdzv-backend=c10d"),
    *("--rdzv-id=job", "--rdzv-endpoint=node1:29400"),
    "--rdzv-conf=is_host=false,keep_alive_interval=1,keep_alive_max_attempt=3",
)
_OPTIONS = "--max-restarts 20 --recover stall=restart:20"


@dataclass(frozen=True, slots=True)
class Interruption:
    """One event: what happens, after how many steps, and to which rank or machine."""

    kind: str
    step: int
    place: int
    #: Seconds for which the next machine is waited for.
    queueing: float
    #: Where a failure of a rank arises.
    within: FailurePlace


@dataclass(frozen=True, slots=True)
class InterruptionCost:
    """The cost of one interruption."""

    kind: str
    #: Seconds in which no step was trained, less those in which a machine was waited for.
    down: float
    #: Steps that were trained and are trained again.
    lost: int
    starts: int


@dataclass(frozen=True, slots=True)
class Start:
    """One start of the training processes, as the first rank has written it."""

    born: float
    #: Wall seconds, and steps completed by then.
    lines: tuple[tuple[float, int], ...]

    @property
    def step_seconds(self) -> float:
        """The median of a step."""
        apart = [later[0] - earlier[0] for earlier, later in itertools.pairwise(self.lines)]
        return statistics.median(apart) if apart else 0.0


def draw(kinds: Sequence[str], apart: int, world: int, dice: Random) -> list[Interruption]:
    """Return these kinds in a drawn order, at drawn steps and places."""
    least, mean, most = QUEUEING
    order = dice.sample(kinds, len(kinds))
    return [
        Interruption(
            kind,
            number * apart + dice.randint(-apart // 5, apart // 5),
            dice.randrange(world),
            min(most, least + dice.expovariate(1.0 / (mean - least))),
            dice.choice(PLACES if kind == "stall" else PLACES[1:])
            if kind in ("stall", "program")
            else KINDS.get(kind, "data"),
        )
        for number, kind in enumerate(order, 1)
    ]


class InterruptedJob:
    """The job on its machines, from entering to leaving.

    Args:
        folder: its own.
        world: machines, with one rank each.
        events: what happens to it.
        pause: seconds from one batch to the next.
        steps: how many it trains.
        mbit: the rate of each machine's link.
    """

    def __init__(
        self, folder: Path, world: int, events: Sequence[Interruption], pause: float, steps: int, mbit: float
    ) -> None:
        self.folder, self.events = folder, events
        self._world, self._mbit = world, mbit
        self._script = [_SCRIPT, str(folder), str(steps), str(pause)]
        self._log = folder / "steps.log"
        self._held = ExitStack()
        #: When each interruption began, and from when to when a machine was waited for.
        self.began: dict[Interruption, float] = {}
        self.queueing: list[tuple[float, float]] = []

    def __enter__(self) -> InterruptedJob:
        (self.folder / "rack").mkdir(parents=True)
        with ExitStack() as held:
            limits = [held.enter_context(limited_memory(_MEMORY)) for _ in range(self._world)]
            self.rack = held.enter_context(Rack(self.folder / "rack"))
            self._begin(limits)
            self._held = held.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def _begin(self, limits: Sequence[list[str]]) -> None:
        plans = {
            event: FailurePlan(
                event.kind, event.step, event.place, event.within, 1, str(self.folder / f"failure-{at}")
            )
            for at, event in enumerate(self.events)
            if event.kind in KINDS
        }
        for plan in plans.values():
            Path(plan.folder).mkdir()
        (self.folder / "failures.json").write_text(json.dumps([asdict(plan) for plan in plans.values()]))
        self._marks = {event: Path(plan.folder, "time-0") for event, plan in plans.items()}
        self._limits = limits
        self.rack.add().start(sys.executable, "-c", MEETING).out.until("^here$")
        self._nodes: list[Node] = []
        self.runs: list[Running] = []
        self.ended: list[Running] = []
        for place in range(self._world):
            self._nodes.append(self.rack.add())
            self.runs.append(self._guarded(place))

    def _guarded(self, place: int) -> Running:
        node = self._nodes[place]
        node.shape(self._mbit)
        launcher = [sys.executable, *_TORCHRUN, f"--nnodes={self._world}", *self._script]
        words = ["-m", "spotguard", "run", "--run-id", "job", "--store", node.url, *_OPTIONS.split()]
        return node.start(
            *self._limits[place], sys.executable, *words, "--", *launcher, SPOTGUARD_LOG_LEVEL="info"
        )

    def train(self) -> None:
        """Let everything happen, until the job has come to its end."""
        for event in self.events:
            if event.kind in KINDS:
                self._await(lambda event=event: self._marks[event].exists(), f"{event}")
                self.began[event] = self._marks[event].stat().st_mtime
            else:
                self._await(lambda event=event: self._step() >= event.step, f"{event}")
                self.began[event] = time.time()
                self._disturb(event)
            print(f"    {event.kind} at step {self._step()}", flush=True)
        for run in self.runs:
            if (code := run.ended(_PATIENCE)) != 0:
                raise RuntimeError(f"a machine ended with {code}:\n{run.account()[-4000:]}")

    def _disturb(self, event: Interruption) -> None:
        node, run = self._nodes[event.place], self.runs[event.place]
        if event.kind == CUT:
            node.cut()
            time.sleep(CUT_FOR)
            node.plug()
            return
        if event.kind == PREEMPTION:
            node.preempt(WINDOW)
            if (code := run.ended(WINDOW)) != 75:
                raise RuntimeError(f"a preempted machine ended with {code}, not 75:\n{run.account()[-4000:]}")
        vacant = time.time()
        node.take()
        self.ended.append(run)
        time.sleep(max(0.0, vacant + event.queueing - time.time()))
        self._nodes[event.place] = self.rack.add()
        self.queueing.append((vacant, time.time()))
        self.runs[event.place] = self._guarded(event.place)

    def _await(self, condition: Any, what: str) -> None:
        end, step = time.monotonic() + _PATIENCE, -1
        while not condition():
            if (now := self._step()) != step:
                end, step = time.monotonic() + _PATIENCE, now
            over = [run for run in self.runs if not run.running]
            if over or time.monotonic() > end:
                account = "\n".join(run.account()[-6000:] for run in over or self.runs)
                raise RuntimeError(f"{what} does not come at step {step}:\n{account}")
            time.sleep(0.05)

    def _step(self) -> int:
        """The newest step of which the log tells."""
        if not self._log.exists() or not (size := self._log.stat().st_size):
            return -1
        with self._log.open("rb") as log:
            log.seek(max(0, size - 200))
            return int(log.read().split()[-1])

    def starts(self) -> list[Start]:
        lines = [line.split() for line in self._log.read_text().splitlines()]
        return [
            Start(float(born), tuple((float(at), int(step)) for _, at, step in found))
            for born, found in itertools.groupby(lines, key=lambda line: line[0])
        ]

    def costs(self, starts: Sequence[Start]) -> list[InterruptionCost]:
        """Return what each interruption cost, in the order of their begins."""
        order = sorted(self.began.items(), key=lambda item: item[1])
        untils = [at for _, at in order[1:]] + [float("inf")]
        return [
            self._cost(event, at, until, starts) for (event, at), until in zip(order, untils, strict=True)
        ]

    def _cost(
        self, event: Interruption, at: float, until: float, starts: Sequence[Start]
    ) -> InterruptionCost:
        gaps = [
            (before.lines[-1], after.lines[0])
            for before, after in itertools.pairwise(starts)
            if at <= after.lines[0][0] < until
        ]
        count = len(gaps)
        if not gaps:  # it trains on, in the same processes
            lines = [
                (earlier, later)
                for start in starts
                for earlier, later in itertools.pairwise(start.lines)
                if later[0] >= at and earlier[0] < until
            ]
            gaps = [max(lines, key=lambda pair: pair[1][0] - pair[0][0])]
        down = sum(later[0] - earlier[0] - self._waited(earlier[0], later[0]) for earlier, later in gaps)
        lost = sum(max(0, earlier[1] - later[1]) for earlier, later in gaps)
        return InterruptionCost(event.kind, down, lost, count)

    def _waited(self, since: float, until: float) -> float:
        return sum(max(0.0, min(to, until) - max(begin, since)) for begin, to in self.queueing)

    @property
    def waited(self) -> float:
        """All seconds in which a machine was waited for."""
        return sum(to - begin for begin, to in self.queueing)

    def reported(self) -> dict[str, Any]:
        """Return what `spotguard report` prints of the run."""
        asking = self._nodes[0].spotguard("report", self._nodes[0].url, "--json")
        if asking.ended() != 0:
            raise RuntimeError(asking.account())
        body: dict[str, Any] = json.loads(asking.out.to_the_end())
        return body


def useful(starts: Sequence[Start]) -> float:
    """Return the seconds of the steps that count in the end, by each start's median step."""

    def backwards() -> Iterator[float]:
        upto = starts[-1].lines[-1][1]
        for start in reversed(starts):
            first, last = start.lines[0][1], start.lines[-1][1]
            yield max(0, min(last, upto) - first) * start.step_seconds
            upto = min(upto, first)

    return sum(backwards())


def by_kind(costs: Iterable[InterruptionCost]) -> dict[str, list[InterruptionCost]]:
    found: dict[str, list[InterruptionCost]] = {}
    for cost in costs:
        found.setdefault(cost.kind, []).append(cost)
    return found
