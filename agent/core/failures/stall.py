"""Stalls: whether a run has stood still for so long that its state is saved, and its stacks are kept.

A wrong alarm costs a checkpoint and a few lines, and nothing is ended for it. Pure, like all of `core`: the time comes in.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from ....hooks.ipc.protocol import PHASES, START, START_WAIT, Position
from ....providers.text import TEXT, clip
from ...events import MachineSeen

#: Seconds for which a silent machine's network may take to heal. Twice as long, and its run may be ended.
HEALING = 60.0
#: Phases in which spotguard, or a checkpoint of the script, makes training wait.
_EXCUSED = ("", "save")
#: Two moments of the last progress that differ by less are one: they are reckoned from ages.
_SAME = 0.5
#: Seconds between two answers about one run that stands still for good.
_AGAIN = 60.0
#: Seconds without a heartbeat of a machine, and without progress of a run with ranks there, that are a stall. A shorter cut of
#: the network heals by itself, and TCP goes on.
SILENT = 10.0
#: Seconds after which a position is too old, and between two looks at a process that sends none: it is stopped, or native code
#: holds its interpreter's lock.
OLD = 10.0
#: A call of native code that held the lock and ended by itself may come again, this many times as long.
_TIMES = 5.0


class Rank(Protocol):
    """A registered training process, as this rule sees it. `core.session.Session` is one."""

    number: int
    pid: int
    uid: int
    run_id: str
    store: str
    rank: int
    world: int
    left: bool

    @property
    def who(self) -> str: ...

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
    #: The machine that is silent, for which the run seems to wait; "" if none is.
    machine: str = ""
    #: Whether the cause is on this machine: a rank here waits for no other, or all ranks are here.
    here: bool = True
    #: The sessions in which no Python runs, by number: they send nothing, and are not stopped. They cannot save.
    held: frozenset[int] = frozenset()
    #: Whether a rank has not begun to train.
    starts: bool = False

    def facts(self) -> dict[str, Any]:
        """Return the stall as plain JSON, for the helper of alerts."""
        return {
            "text": self.text(),
            "run_id": self.session.run_id,
            "rank": self.session.rank,
            "pid": self.session.pid,
            "step": self.session.step,
            "phase": self.phase,
            "where": self.where,
            "seconds": round(self.seconds, 1),
            "machine": self.machine,
        }

    def text(self) -> str:
        """Return the stall for a log line."""
        at = f" at {self.where}" if self.where else ""
        silent = f"machine {self.machine} is silent; " if self.machine else ""
        seen = "sends nothing, and was last seen in" if self.session.number in self.held else "in"
        empty = "; there is nothing to save before training" if self.starts else ""
        return (
            f"{silent}{self.session.who} {seen} {self.phase}{at}: no progress of the run for "
            f"{self.seconds:.0f} s, {self.limit:.0f} s are the limit{empty}"
        )


@dataclass(slots=True)
class _RankProgress:
    """The progress of a rank, as it has told it last."""

    session: Rank
    heard_at: float
    #: The moment from which on it has sent nothing, although it might run; and that of the last look at it, or position.
    silent_from: float = 0.0
    looked_at: float = 0.0
    #: The last look found that it may run; or that it is stopped.
    held: bool = False
    stopped: bool = False
    #: The log has said that it is stopped.
    told_stopped: bool = False
    #: The moment at which the last stop of a rank of its run ended: it may have waited for that one until then.
    excused_until: float = -math.inf
    #: The longest silence of a process that might run, in seconds, if it ended by itself.
    longest_hold: float = 0.0
    phase: str = ""
    where: str = ""
    #: Monotonic seconds of its last progress; infinite if it does not train.
    moved_at: float = math.inf
    #: Seconds without progress that are a stall in its phase; negative while too little is known of it.
    usual: float = -1.0

    def hear(self, position: Position, now: float, first: float) -> str:
        """Take in a position; return a line for the log if its process was stopped, else ""."""
        line = f"{self.session.who} runs again, {now - self.heard_at:.0f} s after its last word"
        line, self.told_stopped = line if self.told_stopped else "", False
        if self.held:
            silence = min(now - self.silent_from, self.limit(first))
            self.longest_hold = max(silence, self.longest_hold)
        self.held = self.stopped = False
        self.silent_from = self.looked_at = self.heard_at = now
        self.moved_at = now - position.still if position.still >= 0 else math.inf
        known = position.phase in (*PHASES, *_EXCUSED, START, START_WAIT)
        self.phase = position.phase if known else "other"
        self.where, self.usual = clip(position.where, TEXT), position.limit
        return line

    def look(self, now: float, *, runs: bool) -> str:
        """Take in whether its process may run, although it sends nothing; return a line for the log, or "".

        A stop begins the limit anew, once it is seen twice: our own look at the stacks stops a process for a moment. So does a
        time in which this agent did not look, because it was stopped itself.
        """
        stays = self.stopped and not runs
        if stays or now - self.looked_at > 2 * OLD:
            self.silent_from = now
        self.looked_at, self.held, self.stopped = now, runs, not runs
        if not stays or self.told_stopped:
            return ""
        self.told_stopped = True
        return (
            f"{self.session.who} is stopped by a signal, a tracer or a frozen cgroup, or is ending: run {self.session.run_id} waits "
            f"for it. This is no stall, and nothing is saved; kill -CONT {self.session.pid} continues what a signal has stopped"
        )

    @property
    def stands_from(self) -> float:
        """Monotonic seconds from which on it has shown no progress. A process that sends nothing may have moved until then."""
        return max(self.moved_at, self.excused_until, self.silent_from if self.held else -math.inf)

    @property
    def trains(self) -> bool:
        """Whether it trains, and tells of its progress: positions are expected."""
        return self.phase != "" and math.isfinite(self.moved_at)

    @property
    def excused(self) -> bool:
        """Whether it may stand still for as long as it likes. Even a save lets some Python run."""
        return self.phase in _EXCUSED and not (self.held and self.trains)

    def limit(self, first: float) -> float:
        if self.excused:
            return math.inf
        if self.held:  # a legitimate call may hold the lock for minutes
            return max(first, _TIMES * self.longest_hold)
        return first if self.usual < 0 else self.usual


class StallWatch:
    """The progress of all sessions. Each position, every two seconds, is a moment to ask `due`, and so is each look at a process
    that sends none.

    Args:
        first: seconds without progress that are a stall in a phase of which little is known (`--stall-first`); None: no stall is
            looked for.
    """

    def __init__(self, first: float | None) -> None:
        self._first = first
        self._seen: dict[int, _RankProgress] = {}
        #: The same by user and run; and the next moment at which time alone makes one of them due, so that an event costs as little
        #: as it has changed. Without a moment, a run is to be looked at now.
        self._runs: dict[tuple[int, str], dict[int, _RankProgress]] = {}
        self._moments: dict[tuple[int, str], float] = {}
        #: By user and run: the moment at which it stood still when it was told.
        self._told: dict[tuple[int, str], float] = {}
        #: Those of them that `lasting` has returned, and when.
        self._lasted: dict[tuple[int, str], float] = {}
        #: By user and run: the other machines whose heartbeats are heard, and since when one is silent.
        self._machines: dict[tuple[int, str], dict[str, float | None]] = {}

    def follow(self, run: tuple[int, str]) -> None:
        """Note that heartbeats are exchanged with the other machines of this run."""
        self._machines.setdefault(run, {})

    def machine(self, seen: MachineSeen, now: float) -> list[str]:
        """Take in news of another machine; return lines for the log."""
        lines = []
        for run in sorted(seen.runs & self._machines.keys()):
            self._moments.pop(run, None)
            machines = self._machines[run]
            before = machines.pop(seen.name, None)
            if not seen.ended:
                machines[seen.name] = seen.silent_since
            if seen.silent_since is not None:
                quiet = f"no heartbeat for {now - seen.silent_since:.0f} s"
                lines.append(f"machine {seen.name} of run {run[1]} is silent: {quiet}")
            elif before is not None:
                lines.append(f"machine {seen.name} of run {run[1]} answers again after {now - before:.0f} s")
        return lines

    def hear(self, session: Rank, position: Position, now: float) -> str:
        """Take in the position of a session; return a line for the log, or ""."""
        if self._first is None or session.left or not session.store:
            return ""
        seen = self._seen.setdefault(session.number, _RankProgress(session, now))
        ranks = self._runs.setdefault(session.run, {})
        ranks[session.number] = seen
        self._moments.pop(session.run, None)
        if seen.stopped:
            for each in ranks.values():
                each.excused_until = now
        return seen.hear(position, now, self._first)

    def unheard(self, now: float) -> Iterator[Rank]:
        """Yield each session that sends nothing, and that is to be looked at now: its process may be stopped."""
        for run in self._due_runs(now):
            yield from (
                each.session for each in self._ranks(run) if each.trains and now >= each.looked_at + OLD
            )

    @property
    def wakes(self) -> Iterator[float]:
        """Monotonic seconds at which `unheard` or `due` has something although no event comes."""
        return iter(self._moments.values())

    def looked(self, number: int, now: float, *, runs: bool) -> str:
        """Take in whether the process of a session that sends nothing may run; return a line for the log, or ""."""
        seen = self._seen.get(number)
        if seen is None or now - seen.heard_at < OLD:
            return ""
        self._moments.pop(seen.session.run, None)
        return seen.look(now, runs=runs)

    def forget(self, number: int) -> None:
        """Forget a session whose connection or training has ended, and its run with the last one."""
        if (seen := self._seen.pop(number, None)) is None:
            return
        run = seen.session.run
        self._moments.pop(run, None)
        del self._runs[run][number]
        if not self._runs[run]:
            for each in (self._runs, self._told, self._lasted):
                each.pop(run, None)

    def over(self, run: tuple[int, str]) -> None:
        """Forget the other machines of a run that has no rank here any more."""
        self._machines.pop(run, None)

    def due(self, now: float) -> Iterator[Stall]:
        """Yield each run that stands still for too long, once until it moves again."""
        for run in self._due_runs(now):
            ranks = self._ranks(run)
            if now >= (at := self._at(run, ranks, now)) and not self._is_told(run, ranks):
                self._told[run] = _moved_at(ranks)
                yield self._stall(run, ranks, now, self._limit(run, ranks))
            looks = (each.looked_at + OLD for each in ranks if each.trains)
            # Who is to be looked at now is looked at already.
            looks = (look if look > now else now + OLD for look in looks)
            self._moments[run] = min((*looks, math.inf if self._is_told(run, ranks) else at))

    def _is_told(self, run: tuple[int, str], ranks: Collection[_RankProgress]) -> bool:
        return self._told.get(run, -math.inf) > _moved_at(ranks) - _SAME

    def _due_runs(self, now: float) -> list[tuple[int, str]]:
        return [run for run in self._runs if now >= self._moments.get(run, now)]

    def _ranks(self, run: tuple[int, str]) -> Collection[_RankProgress]:
        return self._runs[run].values()

    def lasting(self, now: float) -> Stall | None:
        """Return a run that was told and has stood still for twice its limit; None if there is none.

        If it still stands a minute later, return it again.
        """
        for run in self._told:
            ranks = self._ranks(run)
            limit = self._limit(run, ranks)
            if self._silent(run, ranks):
                limit = max(HEALING, limit)
            due = max(_moved_at(ranks) + 2 * limit, self._lasted.get(run, -math.inf) + _AGAIN)
            if self._at(run, ranks, now) <= now >= due:
                self._lasted[run] = now
                return self._stall(run, ranks, now, 2 * limit)
        return None

    def resumed(self) -> Iterator[tuple[Rank, float]]:
        """Yield each run that moves again, with the seconds for which it stood."""
        for run in [*self._told]:
            ranks = [*self._ranks(run)]
            # A position has to show it: a process that was stopped meanwhile has not moved.
            moved_at = max(each.moved_at for each in ranks)
            if math.isfinite(moved_at) and moved_at > self._told[run] + _SAME:
                self._lasted.pop(run, None)
                yield ranks[0].session, moved_at - self._told.pop(run)

    def limit(self, run: tuple[int, str]) -> float | None:
        """Return the seconds without progress that are a stall of this run, where it stands now; None if none is looked for."""
        ranks = self._runs.get(run, {}).values()
        return limit if ranks and (limit := self._limit(run, ranks)) < math.inf else None

    @property
    def standing(self) -> Collection[tuple[int, str]]:
        """The runs that stand still, by user and run."""
        return self._told.keys()

    @property
    def silent(self) -> Collection[tuple[str, str]]:
        """The machines that are silent, each with its run's name."""
        return [
            (run[1], name)
            for run, machines in self._machines.items()
            for name, since in machines.items()
            if since is not None
        ]

    def _stall(
        self, run: tuple[int, str], ranks: Collection[_RankProgress], now: float, limit: float
    ) -> Stall:
        cause, machine = _cause(ranks), next(iter(self._silent(run, ranks)), "")
        here = not machine and (bool(_outside(ranks)) or len(ranks) >= cause.session.world)
        held = frozenset(each.session.number for each in ranks if each.held)
        stood = now - _moved_at(ranks)
        starts = any(each.phase in (START, START_WAIT) for each in ranks)
        return Stall(cause.session, cause.phase, cause.where, stood, limit, machine, here, held, starts)

    def _silent(self, run: tuple[int, str], ranks: Collection[_RankProgress]) -> dict[str, float]:
        """Return the silent machines for which a run may wait, and the moment of the last heartbeat of each.

        A run that has moved since does not wait for them: only the agents' way is blocked, or an agent hangs.
        """
        if any(each.phase in (START, START_WAIT) for each in ranks):
            return {}  # a restore waits for its store, too
        machines, least = self._machines.get(run, {}), _moved_at(ranks) - SILENT
        return {name: since for name, since in machines.items() if since is not None and since >= least}

    def _at(self, run: tuple[int, str], ranks: Collection[_RankProgress], now: float) -> float:
        """Return the moment at which these ranks have stood still for too long; infinite if they are not known to stand."""
        if any(each.excused for each in ranks) or all(each.phase == START_WAIT for each in ranks):
            return math.inf  # a wait of spotguard's for ranks of other machines has limits of its own
        if any(now - each.heard_at > OLD and not each.held for each in ranks):
            return math.inf  # stopped, or not looked at yet
        if any(now - each.looked_at > 2 * OLD for each in ranks):
            return math.inf  # this agent was stopped
        at, silent = _moved_at(ranks) + self._limit(run, ranks), self._silent(run, ranks)
        return max(at, min(silent.values()) + SILENT) if silent else at

    def _limit(self, run: tuple[int, str], ranks: Collection[_RankProgress]) -> float:
        assert self._first is not None
        limit = max(each.limit(self._first) for each in ranks)
        if any(each.held for each in ranks):
            return limit
        if self._silent(run, ranks):
            return SILENT
        if len(ranks) < max(each.session.world for each in ranks) and not _outside(ranks):
            # They wait for a rank of another machine, which may evaluate or save.
            return max(limit, self._first)
        return limit


def _moved_at(ranks: Collection[_RankProgress]) -> float:
    """Return the moment of the last progress of any rank."""
    return max(each.stands_from for each in ranks)


def _outside(ranks: Collection[_RankProgress]) -> list[_RankProgress]:
    """Return the ranks that wait for no other rank."""
    return [each for each in ranks if each.phase not in ("collective", "backward", START_WAIT)]


def _cause(ranks: Collection[_RankProgress]) -> _RankProgress:
    """Return the rank that the others seem to wait for: one in which no Python runs, one that waits for no rank, or the one that
    stands longest.
    """
    held = [each for each in ranks if each.held]
    return min(held or _outside(ranks) or ranks, key=lambda each: each.stands_from)
