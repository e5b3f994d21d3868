"""The timeline of a notice as bars: the whole window, and its busy beginning enlarged."""

from __future__ import annotations

from spotguard.report.svg import Drawing, Scale

from ..clouds import DemoCloud
from ..timeline import COMMITTED, Timeline

_LEFT, _RIGHT = 28.0, 852.0
#: The left and right end of the busy part's bars, in pixels. Texts stand to their left, times to their right.
_BARS, _BARS_END = 290.0, 730.0
_ROW = 24.0
#: The width of an instant's bar, in pixels.
_THIN = 2.5


def height(line: Timeline) -> float:
    """Return the height of the drawing in pixels, from `top` on."""
    return 92 + _ROW * len(line.marks) + 16


def way_of_the_notice(drawing: Drawing, cloud: DemoCloud, line: Timeline, *, top: float) -> None:
    drawing.text(_LEFT, top, "the way of the notice", "head")
    _window(drawing, cloud, line, top + 12)
    _busy(drawing, line, top + 92)


def _window(drawing: Drawing, cloud: DemoCloud, line: Timeline, top: float) -> None:
    """Draw the whole warning, to scale."""
    x = Scale(0, max(line.window, line.end), _LEFT, _RIGHT)
    used = max(_THIN, x(line.end) - _LEFT)
    drawing.rect(_LEFT, top, _RIGHT - _LEFT, 22, "calm", round=4)
    drawing.rect(_LEFT, top, used, 22, "first-bar", round=4)
    drawing.line(x(line.window), top - 5, x(line.window), top + 27, "handover")
    if line.slack is not None:
        middle = (_LEFT + used + _RIGHT) / 2
        drawing.text(middle, top + 15, f"{line.slack:.1f} s to spare", "good", anchor="middle")
    for value in x.ticks(8):
        at_end = x(value) > _RIGHT - 20
        drawing.text(
            x(value),
            top + 40,
            f"{value:g} s",
            "tick",
            anchor="end" if at_end else "middle" if value else "start",
        )
    drawing.text(
        *(_RIGHT, top - 9),
        f"machine 1 is switched off {line.window:g} s after the notice ({cloud.title} gives {cloud.window:g} s)",
        "alarm",
        anchor="end",
    )


def _busy(drawing: Drawing, line: Timeline, top: float) -> None:
    """Draw one row for each event, whose bar begins at the event before."""
    drawing.text(_LEFT, top - 14, f"the first {line.end:.1f} s of it, closer:", "faint")
    x = Scale(0, line.end or 1.0, _BARS, _BARS_END)
    bottom = top + _ROW * (len(line.marks) - 1)
    for value in x.ticks(5):
        drawing.line(x(value), top - 4, x(value), bottom, "grid")
        drawing.text(x(value), bottom + 14, f"{value:g} s", "tick", anchor="middle")
    before, committed = line.marks[0], False
    for number, mark in enumerate(line.marks[1:]):
        y = top + _ROW * number
        drawing.text(_LEFT, y + 13, mark.what)
        kind = "reference-bar" if committed else "first-bar"  # after the commit, time does not matter
        drawing.rect(x(before.at), y + 2, max(_THIN, x(mark.at) - x(before.at)), _ROW - 8, kind, round=2)
        drawing.text(_BARS_END + 12, y + 13, f"{mark.at:.3f} s")
        drawing.text(_RIGHT, y + 13, f"+{_span(mark.at - before.at)}", "faint", anchor="end")
        before, committed = mark, committed or mark.what == COMMITTED


def _span(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
