"""The report as text for a terminal, and as JSON for a program."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator
from typing import Any

from spotguard.hooks.ipc.failure_classes import OF_PLACE, OF_TEXT, OF_TYPE
from spotguard.providers.text import clip, count, span

from .attempts import AttemptLine
from .facts import StackGroup, StallFact
from .reckoning import AlarmLine, RunReport, TimeShare

#: The state of a run, and the end of an attempt, in words.
STATES = {
    "training": "training",
    "stalled": "standing still at its last sign",
    "notice": "preempted",
    "error": "ended by an error",
    "false-error": "ended by an error that was dismissed",
    "ended": "ended by itself",
    "interrupted": "interrupted by Ctrl-C",
    "left": "left by a second restore",
    "silent": "silent: killed, or without a sign",
    "empty": "empty",
    "running": "training",
    "": "no record of its end",
    "bare": "neither a checkpoint nor a record",
}
#: Characters of a cause in a table.
_CAUSE = 160
#: Characters of a fact about a failure, and of a cause in the list of alarms.
_FACT = 400
#: Evidence as an error's record has it, in the words of the table of classes.
_EVIDENCE = {"text": OF_TEXT, "type": OF_TYPE, "place": OF_PLACE}

#: Columns of a key figure's name, and of the figure.
_NAME, _FIGURE = 14, 12


def percent(part: float | None, of: float = 1.0) -> str:
    """Return a part in per cent, "-" if it is not known."""
    return "-" if part is None or not of else f"{100 * part / of:.1f} %"


def steps(number: int | None) -> str:
    """Return a number of steps, "-" if it is not known."""
    return "-" if number is None else f"{number:,}"


def lost_steps(report: RunReport | AttemptLine) -> str:
    """Return the lost steps of a run or of an attempt; "≥" before them if there may be more."""
    lines = report.attempts if isinstance(report, RunReport) else (report,)
    return ("≥ " if any(line.at_least for line in lines) else "") + steps(report.lost)


def dollars(value: float) -> str:
    """Return an amount of money."""
    return f"${value:,.2f}"


def short_seconds(seconds: float | None) -> str:
    """Return the seconds of a step, "-" if they are not known."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def facts_of(report: RunReport) -> Iterator[tuple[str, str, str]]:
    """Yield the key figures: a name, the figure, and a sentence about it."""
    until = "since the first start" if report.down is None else "from the first start to the last sign"
    ettr = f"of the time {until} went into steps that count{_without_queueing(report)}"
    yield (
        "ETTR",
        percent(report.ettr),
        ettr if report.ettr is not None else "the seconds of a step are not known",
    )
    age = "" if report.age is None else f", its checkpoint is {span(report.age)} old"
    yield "step", steps(report.step), f"{count(report.counted, 'step')} of this run count{age}"
    ends = [line.end for line in report.attempts]
    kinds = [
        (kind, ends.count(kind))
        for kind in ("notice", "error", "false-error", "ended", "interrupted", "left", "", "bare", "stalled")
    ]
    told = ", ".join(f"{number} {STATES[kind]}" for kind, number in kinds if number)
    yield "attempts", f"{len(report.attempts)}", told or "the first one trains"
    yield "wall time", span(report.wall), "from the first start to the last sign of the run"
    if report.down is not None:
        waited = (
            "since the last sign: no attempt trains, and neither the wall time nor the ETTR has this time"
        )
        yield "down now", span(report.down), waited
    unknown = sum(
        line.lost is None and line.end not in ("running", "stalled", "bare") for line in report.attempts
    )
    more = f"; those of {count(unknown, 'attempt')} are not known" if unknown else ""
    yield "lost", lost_steps(report), f"steps were trained and do not count{_time_of(report, 'again')}{more}"
    again = _seconds(report, report.kept)
    worth = f", {span(again)} of training" if again else ""
    yield "kept", steps(report.kept), f"steps rescued by saves at a notice or an error{worth}"
    cost = f"of training: {percent(report.cost, report.wall)} of the time, for {count(report.saves, 'checkpoint')}"
    yield "checkpoints", span(report.cost), cost
    if (money := report.money) is not None:
        yield (
            "money",
            dollars(money.spent),
            (
                f"for {money.machine_hours:,.2f} machine hours at {dollars(money.price)}: {dollars(money.useful)} for steps that "
                f"count, {dollars(money.lost)} for lost ones, {dollars(money.checkpoints)} for checkpoints; {dollars(money.kept)} "
                "saved by spotguard"
            ),
        )


def _without_queueing(report: RunReport) -> str:
    if not report.queueing:
        return "; the queueing for machines is not known" if report.queueing is None else ""
    return (
        f"; {percent(report.ettr_without_queueing)} without {span(report.queueing)} of queueing for machines"
    )


def _time_of(report: RunReport, key: str) -> str:
    seconds = next(each.seconds for each in report.shares if each.key == key)
    return f", {span(seconds)} of training" if seconds else ""


def _seconds(report: RunReport, number: int) -> float:
    return number * (report.step_seconds or 0.0)


def cause_of(line: AttemptLine) -> str:
    """Return an attempt's end as one line, with its cause."""
    cause = clip(line.cause, _CAUSE)
    again = "" if line.again is None else f"; training again {span(line.again)} later"
    return STATES[line.end] + (f": {cause}" if cause else "") + again


def alarm_of(alarm: AlarmLine) -> str:
    """Return the cause of an alarm as one line."""
    return ("dismissed: " if alarm.dismissed else "") + clip(alarm.cause, _FACT)


def stall_of(stall: StallFact) -> Iterator[tuple[str, str]]:
    """Yield what the ranks' stacks tell of a stall: a name, and a text."""
    unread = f", {stall.read:,} read" if stall.read < stall.ranks else ""
    known = {
        "cause": stall.culprit or "nothing tells one rank from the others",
        "who waits": stall.waits,
        "stacks": f"of {count(stall.ranks, 'rank')}{unread}",
        "not shown": f"{count(stall.more, 'other stack')}: ranks {stall.more_ranks}" if stall.more else "",
    }
    yield from ((name, clip(value, _FACT)) for name, value in known.items() if value)


def group_of(group: StackGroup) -> str:
    """Return the place of some ranks that stand at one place, as one line."""
    place = " at ".join(filter(None, (group.phase and f"in {group.phase}", group.where)))
    ranks = f"rank{'s' * (group.count > 1)} {group.ranks}"
    return clip(": ".join(filter(None, (ranks, "; ".join(filter(None, (place, group.note)))))), _FACT)


def failure_of(alarm: AlarmLine, report: RunReport) -> Iterator[tuple[str, str]]:
    """Yield what is known of a failure: a name, and a text."""
    failure, line = alarm.failure, next(each for each in report.attempts if each.number == alarm.attempt)
    if failure is None:
        return
    rank = "" if failure.rank is None else f"rank {failure.rank} of {line.world or '?'} on "
    lost = "" if line.lost is None else f"; {count(line.lost, 'step')} lost"
    seconds = (line.lost or 0) * (line.step_seconds or report.step_seconds or 0.0)
    money = seconds / 3600 * (line.machine_count or 1) * (report.money.price if report.money else 0.0)
    known = {
        "class": failure.kind,
        "confidence": failure.confidence,
        "evidence": ", ".join(_EVIDENCE.get(each, each) for each in failure.evidence),
        "scope": f"{rank}{machines_of(line)}{lost}{f', {dollars(money)}' if money else ''}",
        "step": "" if failure.step is None else steps(failure.step),
        "resumes at": "" if failure.newest_checkpoint is None else f"step {steps(failure.newest_checkpoint)}",
        "phase": failure.phase,
        "place": failure.where,
        "what to do": failure.advice,
    }
    yield from ((name, clip(value, _FACT)) for name, value in known.items() if value)


def machines_of(line: AttemptLine) -> str:
    """Return an attempt's machines as text."""
    number = line.machine_count or len(line.machines)
    named = ", ".join(clip(name, 40) for name in line.machines[:2])
    return f"{named} and {number - 2} more" if number > 2 and named else named or "-"


def shown_shares(report: RunReport) -> list[TimeShare]:
    """Return the parts of the wall time that are not next to nothing."""
    return [each for each in report.shares if each.seconds >= 0.05]


def lines(report: RunReport, width: int) -> Iterator[str]:
    """Yield the key figures and the parts of the time as lines for a terminal of `width` columns."""
    for name, figure, words in facts_of(report):
        first = f"  {name:<{_NAME}}{figure:<{_FIGURE}}"
        yield from _folded(first, words, width)
    yield "where the time went"
    for share in shown_shares(report):
        first = f"  {span(share.seconds):<{_NAME}}{percent(share.seconds, report.wall):<{_FIGURE}}"
        yield from _folded(first, share.name, width)


def _folded(first: str, words: str, width: int) -> Iterator[str]:
    rest = textwrap.wrap(words, max(24, width - len(first)), break_long_words=False, break_on_hyphens=False)
    for number, line in enumerate(rest or [""]):
        yield f"{first if not number else ' ' * len(first)}{line}".rstrip()


def as_json(report: RunReport) -> dict[str, Any]:
    """Return the report as plain JSON."""
    return dataclasses.asdict(report)
