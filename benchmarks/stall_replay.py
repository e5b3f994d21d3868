"""The rule for stalls, replayed for a hundred hours from recorded trainings: `python -m benchmarks.stall_replay FOLDER`.

A record is a job's positions, once a second (`clean.py`). It is cut where the job moved. A piece has a phase, and the time for which the
job stood there. Pieces are drawn with replacement from those that followed the same phase, so that pauses come in another order, and some of
them before the rule has learned of such. Each run of a replay begins with a new rule. At its end it hangs, which the rule must find.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from spotguard.agent.core.failures.stall import Stall, StallWatch
from spotguard.agent.core.session import Session
from spotguard.agent.core.state import Policy
from spotguard.hooks.ipc.failures.phase_times import PhaseTimes
from spotguard.hooks.ipc.protocol import Position, Register

from .rows import Row, table

#: Hours of a replayed run: one is drawn.
HOURS = (0.5, 1.0, 2.0, 4.0)
#: Seconds by which two moments of the last progress of a rank may differ, and be one: positions are asked for once a second.
_JITTER = 1.5
#: Seconds after which the rule takes a position for too old. Longer gaps are no hours of training.
_GAP = 10.0
#: Seconds between two positions of a rank, and those of a hang within which it must be found.
_EVERY, _HANG = 2.0, 7200.0
#: The phases in which a hang may be.
HANGS = ("data", "forward", "backward", "optimizer")
#: No other run has had it.
SEED = 2512


@dataclass(frozen=True, slots=True)
class _Heard:
    """A rank's position: its phase, the seconds without progress, and the steps since its last one."""

    rank: int
    phase: str
    still: float
    steps: int


@dataclass(slots=True)
class _Piece:
    """The time from one progress of the job to the next."""

    #: Pairs of the seconds since the moment before, and the ranks that reported then.
    moments: list[tuple[float, list[_Heard]]] = field(default_factory=list)
    #: Of all ranks, at its end.
    phases: tuple[str, ...] = ()


class Record:
    """One recorded job, in pieces.

    Args:
        path: lines of JSON with the positions of the ranks.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self.world = 1
        #: By phase: the longest time without progress of a rank.
        self.longest: dict[str, float] = {}
        #: By the phases before them.
        self._following: dict[tuple[str, ...], list[_Piece]] = {}
        self._all: list[_Piece] = []
        #: By rank: the last position, and the moment of its last progress.
        self._last: dict[int, dict[str, Any]] = {}
        self._moved: dict[int, float] = {}
        piece, newest, heard_at = _Piece(), -math.inf, None
        for line in path.read_text().splitlines():
            body = json.loads(line)
            if not (heard := [*self._heard(body["at"], body.get("ranks", ()))]):
                continue
            moved_at = max(self._moved.values())
            if moved_at > newest + _JITTER:
                newest = moved_at
                if piece.moments:
                    self._add(piece)
                    piece = _Piece()
            piece.moments.append((body["at"] - (heard_at or body["at"]), heard))
            piece.phases = tuple(self._last[rank]["phase"] for rank in sorted(self._last))
            heard_at = body["at"]
        if piece.moments:
            self._add(piece)

    def _heard(self, at: float, positions: Iterable[dict[str, Any]]) -> Iterator[_Heard]:
        """Yield the positions that are new. The same one is recorded until the next one has come."""
        for one in positions:
            rank, before = one["rank"], self._last.get(one["rank"])
            if one["still"] is None or one == before:
                continue
            steps = 0 if before is None else max(0, one["step"] - before["step"])
            moved_at = at - one["still"]
            if before is not None and not steps and abs(moved_at - self._moved[rank]) < _JITTER:
                moved_at = self._moved[rank]
            self._last[rank], self._moved[rank] = one, moved_at
            self.world = max(self.world, one["world"])
            phase = one["phase"] or ""
            self.longest[phase] = max(one["still"], self.longest.get(phase, 0.0))
            yield _Heard(rank, phase, at - moved_at, steps)

    def _add(self, piece: _Piece) -> None:
        before = self._all[-1].phases if self._all else ()
        self._following.setdefault(before, []).append(piece)
        self._all.append(piece)

    def __len__(self) -> int:
        return len(self._all)

    def drawn(self, dice: Random) -> Iterator[_Piece]:
        """Yield pieces without an end, each one that followed the phases of the piece before."""
        phases: tuple[str, ...] = ()
        while True:
            piece = dice.choice(self._following.get(phases) or self._all)
            yield piece
            phases = piece.phases


class _Run:
    """One replayed run of a job."""

    def __init__(self, record: Record) -> None:
        self.seconds = self._now = 0.0
        #: Alarms; and those whose training stands for twice the limit, which `--recover stall=restart` would restart.
        self.alarms: list[Stall] = []
        self.lasting = 0
        self._watch = StallWatch(Policy().stall_first)
        register = Register(0, record.name, record.name, store="file:///", world=record.world)
        self._sessions = [
            Session.of(rank, rank, 0, replace(register, rank=rank), 0.0) for rank in range(record.world)
        ]
        self._times = [PhaseTimes() for _ in self._sessions]

    def replay(self, piece: _Piece) -> None:
        for after, heard in piece.moments:
            self._now += after
            self.seconds += min(after, _GAP)
            for each in heard:
                self._hear(each)

    def _hear(self, heard: _Heard) -> bool:
        """Have the rule hear a position, as the agent's machine does; return whether that was an alarm."""
        session = self._sessions[heard.rank]
        step = max(0, session.step) + heard.steps
        limit = self._times[heard.rank].look(heard.phase, heard.still, step, self._now)
        position = Position(step, phase=heard.phase, still=heard.still, limit=limit)
        session.stands(position, self._now)
        self._watch.hear(session, position, self._now)
        for _ in self._watch.resumed():
            pass
        alarms = [*self._watch.due(self._now)]
        self.alarms += alarms
        self.lasting += self._watch.lasting(self._now) is not None
        return bool(alarms)

    def hang(self, phase: str) -> float | None:
        """Let rank 0 hang in a phase while the others wait for it; return the seconds until the alarm, if it comes."""
        began = self._now
        while self._now < began + _HANG:
            self._now += _EVERY
            for session in self._sessions:
                waits = phase if session.rank == 0 else "collective"
                if self._hear(_Heard(session.rank, waits, self._now - began, 0)):
                    self.alarms.pop()
                    return self._now - began
        return None


def replayed(records: Sequence[Record], hours: float, seed: int) -> Iterator[Row]:
    """Replay these records for so many hours in all."""
    for record in records:
        longest = ", ".join(
            f"{phase or 'no phase'} {seconds:.0f} s" for phase, seconds in sorted(record.longest.items())
        )
        print(f"  {record.name}, longest without progress: {longest}", flush=True)
    dice, runs, hangs = Random(seed), list[_Run](), list[float | None]()
    while sum(run.seconds for run in runs) < hours * 3600.0:
        record = records[len(runs) % len(records)]
        run, until = _Run(record), dice.choice(HOURS) * 3600.0
        for piece in record.drawn(dice):
            run.replay(piece)
            if run.seconds >= until:
                break
        hangs.append(run.hang(dice.choice(HANGS)))
        runs.append(run)
    alarms = [alarm for run in runs for alarm in run.alarms]
    for alarm in alarms:
        print(f"  replayed: {alarm.text()}", flush=True)
    whole = sum(run.seconds for run in runs) / 3600.0
    yield Row(f"replayed, {len(runs)} runs of {len(records)} records", "h", (whole,))
    yield Row("  alarms of stall", "", (float(len(alarms)),))
    yield Row("  of them, twice the limit", "", (float(sum(run.lasting for run in runs)),))
    found = [seconds for seconds in hangs if seconds is not None]
    yield Row(
        f"  a hang at the end of each run, {len(found)} of {len(hangs)} found", "s", tuple(found or [0.0])
    )


def records_in(folder: Path) -> list[Record]:
    """Return the records of a folder that have positions."""
    return [record for path in sorted(folder.glob("*.jsonl")) if len(record := Record(path))]


if __name__ == "__main__":
    print(table(replayed(records_in(Path(sys.argv[1])), 100.0, SEED)))
