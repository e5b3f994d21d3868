"""The reckoning of a run: what became of its time, from its facts. Pure: facts come in, a report goes out.

ETTR, the effective training time ratio, is the steps that count in the end, times the median seconds of an undisturbed step, over
the wall time since the first start. Steps that were trained again do not count, and down time is in the wall time. The ETTR without
queueing leaves out the time in which the next machine was waited for, because no training could use it. Each attempt's steps are counted with that attempt's own median, because the next machine may be another one.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .attempts import (
    UNSEEN,
    AttemptGaps,
    AttemptLine,
    attempt_gaps,
    attempt_lines,
    end_of,
    first_sign,
    last_step,
    next_start,
    saved_its_end,
)
from .facts import FailureFact, RunFacts, StallFact, entries, number, whole
from .notes import clock_notes, missing_facts, money_notes

#: States of a run that waits for its next start.
_DOWN = frozenset({"notice", "error", "left", "silent"})


@dataclass(frozen=True, slots=True)
class TimeShare:
    """A part of the wall time."""

    key: str
    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class AlarmLine:
    """A failure or a stall of the run, which a person may dismiss by its id."""

    id: str
    attempt: int
    #: Wall seconds.
    at: float
    cause: str
    dismissed: bool
    #: The record of an error; None of a stall.
    failure: FailureFact | None
    #: The stacks of a stall; None if the store has none of it, and of an error.
    stall: StallFact | None


@dataclass(frozen=True, slots=True)
class MoneySpent:
    """The run in dollars, by the price of a machine hour. Down time is not paid, nor what follows an attempt's last sign."""

    price: float
    machine_hours: float
    spent: float
    #: For steps that count, for steps that were trained again, and for checkpoints.
    useful: float
    lost: float
    checkpoints: float
    #: Dollars that the steps at stake would have cost again.
    kept: float


@dataclass(frozen=True, slots=True)
class RunReport:
    """Everything that the page, the terminal and the JSON show."""

    run_id: str
    store: str
    #: Wall seconds: of the report, of the first start, and of the last sign of the run.
    now: float
    started: float | None
    ended: float | None
    #: Seconds since the last sign of a run that neither trains nor was brought to its end; None for the others. Not in the wall time.
    down: float | None
    #: "training", "stalled", "notice", "error", "ended", "interrupted", "silent" or "empty".
    state: str
    #: Completed steps that count, the steps of this run among them, and the age of the checkpoint of the next start.
    step: int | None
    counted: int
    age: float | None
    step_seconds: float | None
    #: The seconds of a step are estimated from the dates of checkpoints.
    estimated: bool
    #: None: not known.
    ettr: float | None
    wall: float
    #: Seconds of the wall time spent waiting for the next machine, as far as known, and the ETTR without them; None if never known.
    queueing: float | None
    ettr_without_queueing: float | None
    shares: tuple[TimeShare, ...]
    attempts: tuple[AttemptLine, ...]
    alarms: tuple[AlarmLine, ...]
    lost: int
    kept: int
    saves: int
    cost: float
    money: MoneySpent | None
    #: Sentences about facts that the store does not have.
    notes: tuple[str, ...]


def reckon(facts: RunFacts, price: float | None = None) -> RunReport:
    """Return the report of a run.

    Args:
        facts: the run.
        price: dollars for a machine hour; None if no money is asked for.
    """
    step_seconds, estimated = _step_seconds(facts)
    lines = attempt_lines(facts)
    state = _state(lines)
    chain = _chain(facts)
    signs = [each.ended for each in lines if each.ended is not None]
    starts = [each for line in lines for each in (line.started, line.began) if each is not None]
    started, ended = min(starts, default=None), max(signs, default=None)
    wall = max(0.0, ended - started) if started is not None and ended is not None else 0.0
    counted = sum(max(0, link.last - link.first) for link in chain)
    useful = [_trained(link.last - link.first, link.step_seconds, step_seconds) for link in chain]
    lost = sum(line.lost or 0 for line in lines)
    gaps = attempt_gaps(facts, lines)
    queueing = None if gaps.unknown and not gaps.known else gaps.waiting
    shares = _shares(facts, lines, gaps, wall, sum(useful), step_seconds)

    def ettr(seconds: float) -> float | None:
        return min(1.0, sum(useful) / seconds) if seconds > 0 and step_seconds else None

    newest = next_start(facts)
    return RunReport(
        run_id=facts.run_id,
        store=facts.store,
        now=facts.now,
        started=started,
        ended=ended,
        down=max(0.0, facts.now - ended) if ended is not None and state in _DOWN else None,
        state=state,
        step=chain[-1].last if chain else None,
        counted=counted,
        age=None if newest is None else max(0.0, facts.now - newest[1].at),
        step_seconds=step_seconds,
        estimated=estimated,
        ettr=ettr(wall),
        wall=wall,
        queueing=queueing,
        ettr_without_queueing=None if queueing is None else ettr(wall - queueing),
        shares=shares,
        attempts=lines,
        alarms=_alarms(facts),
        lost=lost,
        kept=sum(line.kept or 0 for line in lines),
        saves=sum(line.saves or 0 for line in lines),
        cost=sum(line.cost or 0.0 for line in lines),
        money=None if price is None else _money(price, facts, lines, chain, step_seconds),
        notes=(
            *missing_facts(lines, gaps, estimated),
            *clock_notes(lines, wall, sum(useful)),
            *(money_notes(lines) if price is not None else ()),
        ),
    )


def _state(lines: Sequence[AttemptLine]) -> str:
    if not lines:
        return "empty"
    end = lines[-1].end
    return "silent" if end in UNSEEN else "training" if end == "running" else end


# --- the steps that count ---


@dataclass(frozen=True, slots=True)
class CountedSteps:
    """The steps of one attempt that led to the checkpoint of the next start, or of several as one."""

    attempt: int | None
    first: int
    last: int
    step_seconds: float | None


def _chain(facts: RunFacts) -> list[CountedSteps]:
    """Return the attempts that led to the checkpoint of the next start, the oldest first, and a last one whose last checkpoint is gone."""
    chain: list[CountedSteps] = []

    def add(number: int | None, first: int | None, last: int, step_seconds: float | None) -> None:
        start = first if first is not None else chain[-1].last if chain else 0
        chain.append(CountedSteps(number, start, max(start, last), step_seconds))

    for entry in entries(facts.history, "earlier"):
        if (last := whole(entry, "last")) is not None:
            add(whole(entry, "attempt"), whole(entry, "first"), last, number(entry, "step_seconds"))
    if (newest := next_start(facts)) is not None:
        attempt, checkpoint = newest
        history = attempt.history
        add(attempt.number, whole(history, "first"), checkpoint.step, number(history, "step_seconds"))
    end = next((each for each in reversed(facts.attempts) if whole(each.history, "first") is not None), None)
    if end is None or not saved_its_end(end):
        return chain
    first, done = whole(end.history, "first"), last_step(end, end_of(end))
    if done is None or first is None:
        return chain
    while chain and chain[-1].first >= first:
        chain.pop()
    if chain and chain[-1].last > first:
        chain[-1] = replace(chain[-1], last=first)
    add(end.number, first, done, number(end.history, "step_seconds"))
    return chain


def _step_seconds(facts: RunFacts) -> tuple[float | None, bool]:
    """Return the median seconds of a step of the run, and whether they are an estimate."""
    known = [each for attempt in facts.attempts if (each := number(attempt.history, "step_seconds"))]
    if known:
        return statistics.median(known), False
    rates = [
        (later.at - earlier.at) / (later.step - earlier.step)
        for attempt in facts.attempts
        for earlier, later in itertools.pairwise(attempt.checkpoints)
        if later.step > earlier.step and later.at > earlier.at
    ]
    return (statistics.median(rates), True) if rates else (None, False)


def _trained(steps: int, own: float | None, common: float | None) -> float:
    """Return the seconds that these steps take undisturbed."""
    return max(0, steps) * (own or common or 0.0)


# --- the time ---


def _shares(
    facts: RunFacts,
    lines: Sequence[AttemptLine],
    gaps: AttemptGaps,
    wall: float,
    useful: float,
    step_seconds: float | None,
) -> tuple[TimeShare, ...]:
    """Return the parts of the wall time. The last one is the rest."""
    starting = sum(
        max(0.0, line.began - line.started)
        for line in lines
        if line.started is not None and line.began is not None
    )
    saving = sum(each.seconds for attempt in facts.attempts for each in attempt.events)
    again = sum(_trained(line.lost or 0, line.step_seconds, step_seconds) for line in lines)
    parts = [
        TimeShare("useful", "training that counts", useful),
        TimeShare("again", "training that was lost", again),
        TimeShare("checkpoints", "checkpoints beside training", sum(line.cost or 0.0 for line in lines)),
        TimeShare("saving", "saves at a notice, an error or a stall", saving),
        TimeShare("starting", "starts, until training goes on", starting),
        TimeShare("waiting", "waiting for a machine", gaps.waiting),
        TimeShare("down", "down, until the next start", gaps.down),
        TimeShare("unseen", "nothing known: no record of an end", gaps.unseen),
    ]
    rest = max(0.0, wall - sum(each.seconds for each in parts))
    return (
        *parts,
        TimeShare("rest", "other: evaluation, stalls, slower steps, and what has no record", rest),
    )


def _alarms(facts: RunFacts) -> tuple[AlarmLine, ...]:
    """Return the alarms in order. The first cause stands for the errors of an attempt."""
    found: dict[str, AlarmLine] = {}
    for attempt in facts.attempts:
        for each in sorted(attempt.events, key=lambda each: (each.follows, each.at)):
            if each.id and each.kind != "save":
                false = each.kind.startswith("false-")
                line = AlarmLine(each.id, attempt.number, each.at, each.text, false, each.failure, each.stall)
                found.setdefault(each.id, line)
    return tuple(sorted(found.values(), key=lambda each: each.at))


# --- the money ---


def _money(
    price: float,
    facts: RunFacts,
    lines: Sequence[AttemptLine],
    chain: Sequence[CountedSteps],
    step_seconds: float | None,
) -> MoneySpent:
    by_number = {line.number: line for line in lines}

    def machines(attempt: int | None) -> int:
        line = by_number.get(attempt) if attempt is not None else None
        return (line.machine_count if line is not None else None) or 1

    def dollars(seconds: float, attempt: int | None) -> float:
        return seconds / 3600 * machines(attempt) * price

    spans = [
        (max(0.0, line.ended - start), line.number)
        for line, attempt in zip(lines, facts.attempts, strict=True)
        if line.ended is not None and (start := first_sign(attempt)) is not None
    ]
    again = [(line, _trained(line.lost or 0, line.step_seconds, step_seconds)) for line in lines]
    spared = [(line, _trained(line.kept or 0, line.step_seconds, step_seconds)) for line in lines]
    return MoneySpent(
        price=price,
        machine_hours=sum(seconds / 3600 * machines(attempt) for seconds, attempt in spans),
        spent=sum(dollars(seconds, attempt) for seconds, attempt in spans),
        useful=sum(
            dollars(_trained(link.last - link.first, link.step_seconds, step_seconds), link.attempt)
            for link in chain
        ),
        lost=sum(dollars(seconds, line.number) for line, seconds in again),
        checkpoints=sum(dollars(line.cost or 0.0, line.number) for line in lines),
        kept=sum(dollars(seconds, line.number) for line, seconds in spared),
    )
