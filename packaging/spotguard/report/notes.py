"""The notes of a report: sentences about facts that the store does not have, and about what that means for the figures. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from spotguard.providers.text import span

from .attempts import SLACK, UNSEEN, AttemptGaps, AttemptLine


def missing_facts(lines: Sequence[AttemptLine], gaps: AttemptGaps, estimated: bool) -> tuple[str, ...]:
    """Return a sentence for each fact that is missing."""
    notes = []
    if estimated:
        notes.append("The seconds of a step are estimated from the dates of checkpoints.")
    if old := [str(line.number) for line in lines if line.began is None and line.end != "bare"]:
        notes.append(f"No checkpoint or record has the history of {_of_attempts(old)}.")
    if gone := [str(line.number) for line in lines[:-1] if not line.end]:
        notes.append(
            f"The end of {_of_attempts(gone)} has no record: killed without a notice, most likely. The steps lost there are not known."
        )
    if bare := [str(line.number) for line in lines if line.end == "bare"]:
        notes.append(
            f"There is neither a checkpoint nor a record of {_of_attempts(bare)}: ended before training, or before the first "
            "checkpoint."
        )
    if gaps.unknown and gaps.known:
        unknown = _of_attempts([str(number) for number in gaps.unknown])
        notes.append(
            f"The queueing before {unknown} is not known, so the ETTR without queueing counts it as if it was none."
        )
    unsaved = [line for line in lines if line.end == "ended" and line.lost]
    if unsaved:
        notes.append(
            f"The script of {_of_attempts([str(line.number) for line in unsaved])} ended behind its newest checkpoint: the steps "
            "behind it count as lost, because no start has them. guard.save() at the end saves them."
        )
    if uncounted := [str(line.number) for line in lines if line.machine_count is None]:
        notes.append(f"The machines of {_of_attempts(uncounted)} are not known, and count as one.")
    return tuple(notes)


def clock_notes(lines: Sequence[AttemptLine], wall: float, useful: float) -> Iterator[str]:
    """Yield sentences about the clocks of the attempts' machines, which set the wall time."""
    overlaps = [
        (after.number, line.number, seconds)
        for line, after in itertools.pairwise(lines)
        if line.ended is not None
        and after.started is not None
        and line.end != "left"  # the same process went on
        and (seconds := line.ended - after.started) > SLACK
    ]
    if overlaps:
        named = ", ".join(
            f"attempt {later} starts {span(seconds)} before the end of attempt {earlier}"
            for later, earlier, seconds in overlaps[:8]
        )
        more = f", and {len(overlaps) - 8} more overlap" if len(overlaps) > 8 else ""
        short = sum(seconds for *_, seconds in overlaps)
        ettr = f", and the ETTR is {100 * min(1.0, useful / (wall + short)):.1f} % then" if useful else ""
        yield (
            f"By their clocks, {named}{more}: the clocks differ, or the attempts ran at once. If the clocks differ, the wall time "
            f"may be {span(short)} too short{ettr}."
        )
    if wall and useful > wall:
        yield (
            f"The steps that count take {span(useful)} by their median, and the wall time is {span(wall)}: the ETTR is cut to "
            "100 %. The attempts' clocks differ, or the median does not hold for all steps."
        )


def money_notes(lines: Sequence[AttemptLine]) -> Iterator[str]:
    """Yield sentences about attempts of which only a part is paid in the report."""
    if endless := [str(line.number) for line in lines if line.end in ("running", "stalled", *UNSEEN)]:
        yield (
            f"The money of {_of_attempts(endless)} is that until the last sign: the end is not known, and the machines may have "
            "run for longer."
        )
    if unclaimed := [str(line.number) for line in lines if line.started is None]:
        yield f"The money of {_of_attempts(unclaimed)} is that from the first sign: the start has no record."


def _of_attempts(numbers: Sequence[str]) -> str:
    some = ", ".join(numbers[:8]) + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
    return f"attempt{'s' * (len(numbers) > 1)} {some}"
