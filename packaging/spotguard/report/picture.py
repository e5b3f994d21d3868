"""The timeline of a run as SVG: completed steps over time, one line for each attempt, with its checkpoints and its end.

The page's style sheet sets the looks by class, so that the picture follows the reader's colour scheme.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence
from typing import TypeVar

from spotguard.providers.text import span

from .attempts import UNSEEN, AttemptLine
from .facts import AttemptFacts, RunFacts
from .reckoning import RunReport
from .summary import STATES
from .svg import Drawing, Scale

_T = TypeVar("_T")

#: Marks of checkpoints in a picture, of all attempts together: more would be one thick line.
_MARKS = 240
#: Seconds between two ticks, from which the picture chooses.
_TICKS = [
    *(1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 10800, 21600, 43200),
    *(86400 * each for each in (1, 2, 5, 7, 14, 28, 56, 112, 224, 448)),
]
#: Pixels between two ticks of time.
_APART = 74


def draw(report: RunReport, facts: RunFacts, *, width: int, height: int, name: str) -> str:
    """Return the timeline as an SVG element; "" if there is nothing to draw.

    Args:
        report: the report.
        facts: the facts that it was reckoned from.
        width: pixels.
        height: pixels.
        name: a prefix of its ids, unique on the page.
    """
    if report.started is None or not report.wall:
        return ""
    drawing = Drawing(width, height)
    most = max([1, *(step for line in report.attempts for step in _steps(line))])
    least = min((line.first for line in report.attempts if line.first is not None), default=0)
    x = Scale(0.0, report.wall, 14 + 8.0 * len(f"{most:,}"), width - 14)
    y = Scale(least, max(most, least + 1) * 1.04 - least * 0.04, height - 34, 18)
    _grid(drawing, x, y)
    _down(drawing, report.attempts, x, y, report.started)
    each = max(8, _MARKS // max(1, len(report.attempts)))
    for line, attempt in zip(report.attempts, facts.attempts, strict=True):
        _attempt(drawing, line, attempt, x, y, report.started, each)
    title = f"Steps of run {report.run_id} over time"
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" class="timeline {name}" '
        f'aria-labelledby="{name}-title {name}-desc">\n<title id="{name}-title">{html.escape(title)}</title>\n'
        f'<desc id="{name}-desc">{html.escape(in_words(report))}</desc>\n'
        + "\n".join(drawing.shapes)
        + "\n</svg>\n"
    )


def in_words(report: RunReport) -> str:
    """Return the picture in words, for those who do not see it."""
    parts = []
    for line in report.attempts:
        first, last = line.first, next(iter(_steps(line)[::-1]), None)
        steps = f" from step {first:,} to {last:,}" if first is not None and last is not None else ""
        parts.append(f"Attempt {line.number}{steps}: {STATES[line.end]}.")
    return " ".join(parts[:40]) + (f" {len(parts) - 40} more attempts follow." if len(parts) > 40 else "")


def _steps(line: AttemptLine) -> list[int]:
    """Return the steps of an attempt that are known, the highest last."""
    return sorted(each for each in (line.first, line.committed, line.last) if each is not None)


def _grid(drawing: Drawing, x: Scale, y: Scale) -> None:
    for value in y.ticks(5):
        if value == int(value):
            drawing.line(x.start, y(value), x.end, y(value), "grid")
            drawing.text(x.start - 8, y(value) + 4, f"{value:,.0f}", "tick", anchor="end")
    about = max(2, int((x.end - x.start) / _APART))
    apart = next((each for each in _TICKS if x.high / each <= about), _TICKS[-1])
    for number in range(int(x.high / apart) + 1):
        at = x(number * apart)
        anchor = "start" if not number else "middle" if at < x.end - 24 else "end"
        drawing.line(at, y.start, at, y.start + 4, "axis")
        drawing.text(at, y.start + 18, _time(number * apart, apart), "tick", anchor=anchor)
    drawing.line(x.start, y.start, x.end, y.start, "axis")


def _time(seconds: int, apart: int) -> str:
    """Return a tick's time since the start, as "1 h 30" would be too long: 1:30 h, 20 min, 3 d."""
    if not seconds:
        return "0"
    if apart >= 86400:
        return f"{seconds // 86400} d"
    if apart >= 60 and seconds >= 3600:
        return f"{seconds // 3600}:{seconds % 3600 // 60:02d} h"
    return f"{seconds // 60} min" if apart >= 60 else f"{seconds} s"


def _down(drawing: Drawing, lines: Sequence[AttemptLine], x: Scale, y: Scale, start: float) -> None:
    """Shade the time between two attempts."""
    for line, after in itertools.pairwise(lines):
        if line.ended is not None and after.started is not None and after.started > line.ended:
            left, right = x(line.ended - start), x(after.started - start)
            drawing.rect(
                left,
                y.end,
                max(1.0, right - left),
                y.start - y.end,
                "unseen" if line.end in UNSEEN else "down",
            )


def _attempt(
    drawing: Drawing, line: AttemptLine, attempt: AttemptFacts, x: Scale, y: Scale, start: float, marks: int
) -> None:
    began = line.began if line.began is not None else line.started
    shown = _some(attempt.checkpoints, marks)
    there = {each.step for each in attempt.checkpoints}
    gone = [  # their checkpoints are deleted
        (each.at, each.step)
        for each in attempt.events
        if each.committed
        and each.step is not None
        and each.step not in there
        and not (each.failure and each.failure.by_agent)
    ]
    points = sorted([*((each.at, each.step) for each in shown), *gone])
    if began is not None and line.first is not None:
        points.insert(0, (began, line.first))
    end = next(iter(_steps(line)[::-1]), None)
    if line.ended is not None and end is not None and (not points or line.ended >= points[-1][0]):
        points.append((line.ended, max(end, points[-1][1] if points else 0)))
    drawing.path([(x(at - start), y(step)) for at, step in points], "attempt")
    for each in shown:
        _mark(drawing, each.emergency, x(each.at - start), y(each.step))
    for at, step in gone:
        _mark(drawing, True, x(at - start), y(step))
    if points and line.end:
        at, step = points[-1]
        # The green dot is of an end that lost nothing.
        _end(
            drawing, "error" if line.end == "interrupted" and line.lost else line.end, x(at - start), y(step)
        )
    elif line.end == "bare" and began is not None:  # no step of it is known
        _end(drawing, "bare", x(began - start), y.start - 5)


def _mark(drawing: Drawing, emergency: bool, x: float, y: float) -> None:
    drawing.dot(x, y, 4 if emergency else 2.5, "saved" if emergency else "checkpoint")


def _end(drawing: Drawing, end: str, x: float, y: float) -> None:
    if end == "notice":
        drawing.path([(x - 6, y - 14), (x + 6, y - 14), (x, y - 5), (x - 6, y - 14)], "notice")
    elif end == "error":
        drawing.line(x - 5, y - 15, x + 5, y - 5, "error")
        drawing.line(x + 5, y - 15, x - 5, y - 5, "error")
    elif end in ("ended", "interrupted", "left", "false-error"):
        drawing.dot(x, y, 5, "ended")
    elif end == "bare":
        drawing.dot(x, y, 4, "bare")


def _some(every: Sequence[_T], most: int) -> Sequence[_T]:
    """Return a sequence thinned evenly; the last element stays."""
    if len(every) <= most:
        return every
    return [every[round(number * (len(every) - 1) / (most - 1))] for number in range(most)]


def legend() -> list[tuple[str, str]]:
    """Return each sign of the picture as a small SVG, with its meaning."""
    signs = []
    for name, meaning in (
        ("checkpoint", "checkpoint"),
        ("saved", "checkpoint at a notice, an error or a stall"),
        ("notice", "preempted"),
        ("error", "ended by an error, or by Ctrl-C with steps lost"),
        ("ended", "ended by itself, by Ctrl-C or by a second restore"),
        ("bare", "started, and left neither a checkpoint nor a record"),
        ("down", "no machine trains"),
        ("unseen", "no record of the end"),
    ):
        drawing = Drawing(18, 16)
        if name in ("down", "unseen"):
            drawing.rect(1, 1, 16, 14, name)
        elif name in ("notice", "error"):
            _end(drawing, name, 9, 18)
        elif name in ("ended", "bare"):
            _end(drawing, name, 9, 8)
        else:
            drawing.dot(9, 8, 4 if name == "saved" else 2.5, name)
        shapes = "".join(drawing.shapes)
        signs.append(
            (f'<svg viewBox="0 0 18 16" width="18" height="16" aria-hidden="true">{shapes}</svg>', meaning)
        )
    return signs


def duration(seconds: float | None) -> str:
    """Return seconds as text, "-" if they are not known."""
    return "-" if seconds is None else span(seconds)
