"""The attempts of a run, reckoned: how each began and ended, what it lost, whether it still trains, and the time between them. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .facts import AttemptFacts, CheckpointFact, EventFact, RunFacts, number, whole

#: Seconds of slack between a record and the checkpoint that it reports, and between two machines' clocks.
SLACK = 1.0
#: Seconds without a sign after which an attempt without a known end is not taken for one that trains: at least; as a number of
#: intervals, and of steps; and as long as its rhythm is not known.
_QUIET_LEAST, _QUIET_INTERVALS, _QUIET_STEPS, _QUIET = 900.0, 3, 20, 3600.0
#: Ends that a notice or an error brought.
_STOPS = ("notice", "error", "false-error")
#: Ends of which the store has no record.
UNSEEN = ("", "bare")


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
    #: "notice", "error", "false-error" (dismissed), "ended", "interrupted", "left" by a restore; "running"; "stalled": its last sign
    #: is that training stood still; "" if the store does not have it; "bare": the attempt left neither a checkpoint nor a record.
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
    #: Seconds from the end at a notice or an error until a later attempt trained; None if none has, or if it is not known.
    again: float | None = None
    #: `last` is the step at which the agent last saw the attempt, before it was killed: it may have trained and lost more.
    at_least: bool = False


def attempt_lines(facts: RunFacts) -> tuple[AttemptLine, ...]:
    newest = next_start(facts)
    lines: list[AttemptLine] = []
    resumed: int | None = None  # where the next attempt began that trained
    began: float | None = None  # and when
    for attempt in reversed(facts.attempts):
        line = _line(attempt, facts, resumed, newest)
        if began is not None and line.ended is not None and line.end in _STOPS:
            line = replace(line, again=max(0.0, began - line.ended))
        lines.append(line)
        if (first := whole(attempt.history, "first")) is not None:
            resumed, began = first, number(attempt.history, "began")
    return tuple(reversed(lines))


def _line(
    attempt: AttemptFacts,
    facts: RunFacts,
    resumed: int | None,
    newest: tuple[AttemptFacts, CheckpointFact] | None,
) -> AttemptLine:
    history, end = attempt.history, end_of(attempt)
    committed = attempt.checkpoints[-1].step if attempt.checkpoints else None
    first = whole(history, "first")
    last = last_step(attempt, end)
    if resumed is None:  # nothing trained after it
        if saved_its_end(attempt):
            resumed = last
        elif newest is None:
            resumed = first
        elif newest[0].number <= attempt.number:
            resumed = newest[1].step
    # The history is as old as the file that has it, and an announcement may be lost. Without the save at its end, an attempt would
    # have had its drills' checkpoints all the same.
    asked = {each.step for each in attempt.events if each.committed and each.failure is None}
    own = [each.step for each in attempt.checkpoints if not each.emergency and each.step not in asked]
    drilled = [each.step for each in attempt.events if each.kind == "drill" and each.committed]
    known = (whole(history, "periodic"), *own, *drilled)
    periodic = max((each for each in known if each is not None), default=None)
    stops = end is not None and end.kind in _STOPS
    done = last if last is not None else committed
    since = periodic if periodic is not None else first
    kind = "" if end is None else end.kind
    if end is None and attempt is facts.attempts[-1] and trains(attempt, facts.now):
        kind = "stalled" if stands(attempt) else "running"
    elif first is None and not attempt.checkpoints and not attempt.events:
        kind = "bare"
    lost = None if last is None or resumed is None else max(0, last - resumed)
    kept: int | None = None
    if stops and end is not None and done is not None and since is not None:
        # A rank that was killed had no time to hear of the save, so its record may not know the checkpoint.
        saves = [each for each in attempt.events if each.kind in ("save", "stall", "false-stall")]
        saved = end.committed or any(each.committed and each.step == done for each in saves)
        kept = max(0, done - since - (lost or 0)) if saved else 0
    return AttemptLine(
        number=attempt.number,
        machines=attempt.machines,
        machine_count=attempt.machine_count,
        world=attempt.world,
        started=attempt.started,
        began=number(history, "began"),
        ended=_ended(attempt, end),
        end=kind,
        cause="" if end is None else end.text,
        first=first,
        last=last,
        committed=committed,
        lost=lost,
        kept=kept,
        step_seconds=number(history, "step_seconds"),
        saves=whole(history, "saves"),
        cost=number(history, "cost"),
        stalls=sum(each.kind == "stall" for each in attempt.events),
        at_least=lost is not None and _last_seen(end, last),
    )


def next_start(facts: RunFacts) -> tuple[AttemptFacts, CheckpointFact] | None:
    """Return the checkpoint that the next start restores, with its attempt; None if there is none."""
    for attempt in reversed(facts.attempts):
        for each in reversed(attempt.checkpoints):
            if facts.resumes in (None, (attempt.number, each.step)):
                return attempt, each
    return None


def end_of(attempt: AttemptFacts) -> EventFact | None:
    """Return the event that ended the attempt, or None if the store does not have it.

    After a notice that was withdrawn, training went on, and so it does if the agent that was to start it again is killed first.
    """
    ends = [each for each in attempt.events if not (each.asked and _went_on(attempt, each))]
    for kind in ("error", "false-error"):
        if (error := first_error(ends, kind)) is not None:
            return error
    by_kind = {each.kind: each for each in attempt.events}  # the newest of each kind
    for kind in ("ended", "interrupted", "left"):
        if kind in by_kind:
            return by_kind[kind]
    notice = by_kind.get("notice")
    return None if notice is None or _went_on(attempt, notice) else notice


def _went_on(attempt: AttemptFacts, event: EventFact) -> bool:
    """Return whether training went on after a notice.

    A checkpoint of a later step shows that. Dates alone would not, for they are of two clocks.
    """
    if event.step is None:
        return any(each.at > event.at + SLACK for each in attempt.checkpoints)
    return any(each.step > event.step for each in attempt.checkpoints)


def first_error(events: Iterable[EventFact], kind: str = "error") -> EventFact | None:
    """Return the error that the others follow from: those that tell of another rank's come last, then the earliest counts."""
    errors = [each for each in events if each.kind == kind]
    return min(errors, key=lambda each: (each.follows, each.at), default=None)


def last_step(attempt: AttemptFacts, end: EventFact | None) -> int | None:
    """Return the completed steps at the attempt's end: those of its record, or of the save of the other ranks at an error."""
    if end is None:
        return None
    own = end.step if end.step is not None else whole(end.history, "completed")
    saved = [each.step for each in attempt.events if each.kind == "save" and each.committed]
    return max((each for each in (own, *saved) if each is not None), default=None)


def _last_seen(end: EventFact | None, last: int | None) -> bool:
    """Whether an attempt was killed at an unknown step, and `last` is only the one at which its agent last saw it."""
    failure = None if end is None else end.failure
    if failure is None or not failure.by_agent or failure.kind == "stall":
        return False  # training that stands still completes no further step
    return failure.step == last


def first_sign(attempt: AttemptFacts) -> float | None:
    """Return when the attempt started, or gave its first sign if that has no record; None if it gave none."""
    return attempt.started if attempt.started is not None else min(_signs(attempt), default=None)


def last_sign(attempt: AttemptFacts) -> float | None:
    """Return when the attempt gave its last sign; None if it gave none."""
    return max(_signs(attempt), default=None)


def _signs(attempt: AttemptFacts) -> list[float]:
    signs = [each.at for each in attempt.checkpoints] + [each.at for each in attempt.events]
    others = (attempt.started, number(attempt.history, "began"), attempt.touched or None)
    return signs + [each for each in others if each]


def _ended(attempt: AttemptFacts, end: EventFact | None) -> float | None:
    """Return when the attempt ended, or its last sign."""
    if end is None:
        return last_sign(attempt)
    at = max(each.at for each in (end, *attempt.events) if each.kind == end.kind)
    return max([at, *(each.at for each in attempt.checkpoints if each.at <= at + SLACK)])


def trains(attempt: AttemptFacts, now: float) -> bool:
    """Whether an attempt without a known end still gives signs of life."""
    sign = last_sign(attempt)
    return sign is not None and now - sign <= patience(attempt)


def patience(attempt: AttemptFacts) -> float:
    """Return the seconds without a sign after which an attempt is not taken for one that trains."""
    history, dates = attempt.history, [each.at for each in attempt.checkpoints]
    apart, step = rhythm(history, dates), number(history, "step_seconds") or 0.0
    if not apart or max(len(dates), whole(history, "saves") or 0) < 2:
        return _QUIET  # the first interval is a guess, and its steps may compile
    return max(_QUIET_LEAST, _QUIET_INTERVALS * apart, _QUIET_STEPS * step)


def rhythm(history: Mapping[str, Any], dates: Sequence[float]) -> float:
    """Return the seconds from one checkpoint of an attempt to the next, as far as they are known; 0 if they are not.

    An upload may take longer than the interval, and a script may save by itself.

    Args:
        history: the attempt's facts.
        dates: when its checkpoints were complete, the oldest first.
    """
    return max([number(history, "interval") or 0.0, *(dates[-1] - each for each in dates[-2:-1])])


def stands(attempt: AttemptFacts) -> bool:
    """Whether the attempt's last sign is that training stood still: it may stand there still, or have been killed."""
    newest = attempt.events[-1] if attempt.events else None
    return newest is not None and newest.kind == "stall" and not _went_on(attempt, newest)


def saved_its_end(attempt: AttemptFacts) -> bool:
    """Whether the script came to its end, and had saved its last step. Its checkpoint may be deleted since."""
    end = end_of(attempt)
    if end is None or end.kind != "ended" or (last := last_step(attempt, end)) is None:
        return False
    saved = [whole(attempt.history, "periodic"), *(each.step for each in attempt.checkpoints[-1:])]
    return any(step is not None and step >= last for step in saved)


@dataclass(slots=True)
class AttemptGaps:
    """The seconds between attempts."""

    #: Until the next machine was there; from then on; and after an attempt whose end has no record.
    waiting: float = 0.0
    down: float = 0.0
    unseen: float = 0.0
    #: The attempts before which the waiting is known, and those before which it is not.
    known: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)


def attempt_gaps(facts: RunFacts, lines: Sequence[AttemptLine]) -> AttemptGaps:
    """Return the seconds between the attempts of a run."""
    gaps = AttemptGaps()
    for (line, after), facts_after in zip(itertools.pairwise(lines), facts.attempts[1:], strict=False):
        if line.ended is None or after.started is None:
            continue
        gap, available = max(0.0, after.started - line.ended), facts_after.available
        if line.end not in UNSEEN and available is not None and available <= after.started:
            waited = min(gap, max(0.0, available - line.ended))
            gaps.waiting, gaps.down = gaps.waiting + waited, gaps.down + gap - waited
            gaps.known.append(after.number)
            continue
        if gap > SLACK:
            gaps.unknown.append(after.number)
        if line.end in UNSEEN:
            gaps.unseen += gap
        else:
            gaps.down += gap
    return gaps
