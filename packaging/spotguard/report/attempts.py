"""The attempts of a run, reckoned: how each began and ended, what it lost, and whether it still trains. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .facts import AttemptFacts, EventFact, RunFacts, number, whole

#: Seconds of slack between a record and the checkpoint that it reports.
_SLACK = 1.0
#: Seconds without a sign after which an attempt without a known end is not taken for one that trains: at least, where the interval
#: is known as a number of intervals, and where it is not.
QUIET_LEAST, QUIET_INTERVALS, QUIET = 900.0, 3, 3600.0


@dataclass(frozen=True, slots=True)
class AttemptLine:
    """One attempt, reckoned."""

    number: int
    machines: tuple[str, ...]
    #: None: not known.
    machine_count: int | None
    world: int | None
    #: Wall seconds: of the start, of the first step, and of the end or the last sign of it.
    started: float | None
    began: float | None
    ended: float | None
    #: "notice", "error", "ended", "interrupted", "left" by a restore; "running"; "" if the store does not have it.
    end: str
    #: The cause of the end in words.
    cause: str
    #: Completed steps at its begin and at its end, and of its newest checkpoint.
    first: int | None
    last: int | None
    committed: int | None
    #: Steps that were trained and do not count; None if not known.
    lost: int | None
    #: Steps that count thanks to a save at the end: those since the last checkpoint that no notice or error asked for.
    kept: int | None
    step_seconds: float | None
    #: Checkpoints that no notice or error asked for, and the seconds of training that they cost.
    saves: int | None
    cost: float | None
    stalls: int


def attempt_lines(facts: RunFacts) -> tuple[AttemptLine, ...]:
    attempts = facts.attempts
    return tuple(
        _line(attempt, after, facts)
        for attempt, after in itertools.zip_longest(attempts, attempts[1:])
        if attempt is not None
    )


def _line(attempt: AttemptFacts, after: AttemptFacts | None, facts: RunFacts) -> AttemptLine:
    history, end = attempt.history, end_of(attempt)
    committed = attempt.checkpoints[-1].step if attempt.checkpoints else None
    first = whole(history, "first")
    last = last_step(attempt, end)
    resumed = committed if after is None else whole(after.history, "first")
    if after is None and came_to_its_end(attempt):
        resumed = last
    elif after is None and resumed is None:
        resumed = first
    periodic = whole(history, "periodic")
    if periodic is None:
        periodic = max((each.step for each in attempt.checkpoints if not each.emergency), default=None)
    stops = end is not None and end.kind in ("notice", "error")
    done = last if last is not None else committed
    since = periodic if periodic is not None else first
    ended = _ended(attempt, end)
    patience = quiet(rhythm(history, [each.at for each in attempt.checkpoints]))
    running = after is None and end is None and ended is not None and facts.now - ended <= patience
    lost = None if last is None or resumed is None else max(0, last - resumed)
    return AttemptLine(
        number=attempt.number,
        machines=attempt.machines,
        machine_count=attempt.machine_count,
        world=attempt.world,
        started=attempt.started,
        began=number(history, "began"),
        ended=ended,
        end="running" if running else "" if end is None else end.kind,
        cause="" if end is None else end.text,
        first=first,
        last=last,
        committed=committed,
        lost=lost,
        kept=max(0, done - since - (lost or 0)) if stops and done is not None and since is not None else None,
        step_seconds=number(history, "step_seconds"),
        saves=whole(history, "saves"),
        cost=number(history, "cost"),
        stalls=sum(each.kind == "stall" for each in attempt.events),
    )


def end_of(attempt: AttemptFacts) -> EventFact | None:
    """Return the event that ended the attempt, or None if the store does not have it.

    After a notice that was withdrawn, training went on: a later checkpoint shows that.
    """
    by_kind = {each.kind: each for each in attempt.events}  # the newest of each kind
    for kind in ("error", "ended", "interrupted", "left"):
        if kind in by_kind:
            return by_kind[kind]
    notice = by_kind.get("notice")
    if notice is None:
        return None
    later = [each for each in attempt.checkpoints if each.at > notice.at + _SLACK]
    return None if any(each.step > (notice.step or 0) for each in later) else notice


def last_step(attempt: AttemptFacts, end: EventFact | None) -> int | None:
    """Return the completed steps at the attempt's end."""
    if end is None:
        return None
    return end.step if end.step is not None else whole(end.history, "completed")


def _ended(attempt: AttemptFacts, end: EventFact | None) -> float | None:
    """Return when the attempt ended, or its last sign."""
    signs = [each.at for each in attempt.checkpoints] + [each.at for each in attempt.events]
    signs += [each for each in (attempt.started, number(attempt.history, "began")) if each is not None]
    if end is not None:
        return max([end.at, *(each for each in signs if each <= end.at + _SLACK)])
    return max(signs, default=None)


def rhythm(history: Mapping[str, Any], dates: Sequence[float]) -> float:
    """Return the seconds from one checkpoint of an attempt to the next, as far as they are known; 0 if they are not.

    An upload may take longer than the interval, and a script may save by itself.

    Args:
        history: the attempt's facts.
        dates: when its checkpoints were complete, the oldest first.
    """
    return max([number(history, "interval") or 0.0, *(dates[-1] - each for each in dates[-2:-1])])


def quiet(rhythm: float) -> float:
    """Return the seconds without a sign after which an attempt is not taken for one that trains."""
    return max(QUIET_LEAST, QUIET_INTERVALS * rhythm) if rhythm else QUIET


def came_to_its_end(attempt: AttemptFacts) -> bool:
    event = end_of(attempt)
    return event is not None and event.kind == "ended"
