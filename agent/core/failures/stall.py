"""Stalls: whether a run has stood still for so long that its state is saved, and its stacks are kept.

A wrong alarm costs a checkpoint and a few lines, and nothing is ended for it. Pure, like all of `core`: the time comes in.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from ....hooks.ipc.protocol import Position
from ....providers.text import NAME, TEXT, clip

#: The shortest time without progress that is a stall, in seconds, and its multiple of the usual one in that phase.
LEAST, TIMES = 60.0, 5.0
#: Samples of a phase without which nothing is usual yet. Then `--stall-first` counts: a first step may compile for minutes.
ENOUGH = 20
#: Samples of a phase that are kept.
_KEPT = 512
#: Phases that every step passes.
_OF_A_STEP = ("data", "forward", "backward", "optimizer", "collective", "other")
#: Phases in which spotguard, or a checkpoint of the script, makes training wait.
_EXCUSED = ("", "save")
#: Two moments of the last progress that differ by less are one: they are reckoned from ages.
_SAME = 0.5
#: Seconds after which a position is too old: its process is stopped, or its interpreter is held. It counts for nothing.
_OLD = 10.0


class Rank(Protocol):
    """What a registered training process is for this rule. `core.session.Session` is one."""

    number: int
    pid: int
    uid: int
    run_id: str
    store: str
    rank: int
    left: bool

    @property
    def run(self) -> tuple[int, str]: ...

    @property
    def step(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Stall:
    """A run that stands still, and the rank that seems to be the cause."""

    session: Rank
    phase: str
    where: str
    #: Seconds without progress of all ranks here, and how many are a stall.
    seconds: float
    limit: float

    def text(self) -> str:
        """Return the stall for a log line."""
        at = f" at {self.where}" if self.where else ""
        return (
            f"rank {self.session.rank} (pid {self.session.pid}) in {self.phase}{at}: no progress of the run for "
            f"{self.seconds:.0f} s, {self.limit:.0f} s are the limit"
        )


@dataclass(slots=True)
class _RankProgress:
    """What is known of one session's progress."""

    session: Rank
    heard_at: float
    phase: str = ""
    where: str = ""
    #: Monotonic seconds of its last progress.
    moved_at: float = math.inf
    step: int = -1
    #: Seconds without progress, by the phase in which they were seen.
    usual: dict[str, deque[float]] = field(default_factory=dict)

    def hear(self, position: Position, now: float, first: float) -> None:
        moved_at = now - position.still if position.still >= 0 else math.inf
        if moved_at > self.moved_at + _SAME and self.phase:
            # No more than the limit: what was a stall makes the next limit five times as long, not a hundred times.
            self._sample(self.phase, min(max(0.0, self.heard_at - self.moved_at), self.limit(first)))
        if position.step > self.step >= 0:
            for phase in _OF_A_STEP:
                for _ in range(min(position.step - self.step, ENOUGH)):
                    self._sample(phase, 0.0)
        self.phase, self.where = clip(position.phase, NAME), clip(position.where, TEXT)
        self.moved_at, self.step, self.heard_at = moved_at, position.step, now

    def _sample(self, phase: str, seconds: float) -> None:
        self.usual.setdefault(phase, deque(maxlen=_KEPT)).append(seconds)

    def limit(self, first: float) -> float:
        known = sorted(self.usual.get(self.phase, ()))
        if self.phase in _EXCUSED:
            return math.inf
        if len(known) < ENOUGH:
            return first
        return max(LEAST, TIMES * known[math.ceil(0.99 * len(known)) - 1])


class StallWatch:
    """The progress of all sessions. Each position, every two seconds, is a moment to ask `due`: it needs no wake of its own.

    Args:
        first: seconds without progress that are a stall in a phase of which little is known (`--stall-first`); None: no stall is
            looked for.
    """

    def __init__(self, first: float | None) -> None:
        self._first = first
        self._seen: dict[int, _RankProgress] = {}
        #: By user and run: the moment at which it stood still when it was told.
        self._told: dict[tuple[int, str], float] = {}

    def hear(self, session: Rank, position: Position, now: float) -> None:
        """Take in the position of a session."""
        if self._first is not None:
            seen = self._seen.setdefault(session.number, _RankProgress(session, now))
            seen.hear(position, now, self._first)

    def forget(self, number: int) -> None:
        """Forget a session whose connection has ended."""
        self._seen.pop(number, None)

    def due(self, now: float) -> Iterator[Stall]:
        """Yield each run that stands still for too long, once until it moves again."""
        for run, ranks in self._runs().items():
            moved_at = max(each.moved_at for each in ranks)
            if self._told.get(run, -math.inf) > moved_at - _SAME or now < self._at(ranks, now):
                continue
            self._told[run] = moved_at
            cause = _cause(ranks)
            yield Stall(cause.session, cause.phase, cause.where, now - moved_at, self._limit(ranks))

    def resumed(self) -> Iterator[tuple[Rank, float]]:
        """Yield each run that moves again, with the seconds for which it stood."""
        for run, ranks in self._runs().items():
            moved_at = max(each.moved_at for each in ranks)
            if run in self._told and math.isfinite(moved_at) and moved_at > self._told[run] + _SAME:
                yield ranks[0].session, moved_at - self._told.pop(run)

    def _runs(self) -> dict[tuple[int, str], list[_RankProgress]]:
        runs: dict[tuple[int, str], list[_RankProgress]] = {}
        for seen in self._seen.values():
            if not seen.session.left and seen.session.store:
                runs.setdefault(seen.session.run, []).append(seen)
        return runs

    def _at(self, ranks: Collection[_RankProgress], now: float) -> float:
        """Return the moment at which these ranks have stood still for too long; infinite if they are not known to stand."""
        if any(now - each.heard_at > _OLD or each.phase in _EXCUSED for each in ranks):
            return math.inf
        return max(each.moved_at for each in ranks) + self._limit(ranks)

    def _limit(self, ranks: Collection[_RankProgress]) -> float:
        assert self._first is not None
        return max(each.limit(self._first) for each in ranks)


def _cause(ranks: Collection[_RankProgress]) -> _RankProgress:
    """Return the rank that the others seem to wait for: one that is outside a collective, else the one that stands longest."""
    alone = [each for each in ranks if each.phase not in ("collective", "backward")]
    return min(alone if 0 < len(alone) < len(ranks) else ranks, key=lambda each: each.moved_at)
