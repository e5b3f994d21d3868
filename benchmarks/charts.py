"""The picture of docs/reference/metrics.md: `python -m benchmarks.charts` plays `watching`'s story and draws what was recorded of it.

Each chart is a panel of the dashboard that is shipped, with its own title, unit and queries, as Grafana would ask for them.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spotguard.report.svg import Drawing, Scale
from tests.e2e.promql import dashboard, filled
from tests.servers.program import find
from tests.servers.prometheus import Prometheus

_DOCS = Path(__file__).parent.parent / "docs" / "images"

#: Panels of the dashboard, by title, in the order in which they are drawn.
PANELS = (
    "Blind",
    "Age of the newest checkpoint",
    "Would it fit?",
    "The notice in hand",
    "Left at each stage",
    "Outcomes",
)

_WIDTH, _MARGIN, _TOP = 880, 28, 64
_PLOT = (360, 130)
_COLUMNS, _ROW = 2, 236
#: Lines of names below a chart, in two columns where they are short; of more than these the rest is counted.
_NAMED, _SHORT = 3, 28
_COLOURS = 6

_STYLE = """
.demo { --page: #ffffff; --edge: #d1d9e0; --ink: #1f2328; --faint: #59636e; --grid: #eaeef2;
  --c0: #0969da; --c1: #cf222e; --c2: #1a7f37; --c3: #9a6700; --c4: #8250df; --c5: #bf3989 }
@media (prefers-color-scheme: dark) { .demo { --page: #0d1117; --edge: #3d444d; --ink: #f0f6fc; --faint: #9198a1; --grid: #21262d;
  --c0: #4493f8; --c1: #f85149; --c2: #3fb950; --c3: #d29922; --c4: #ab7df8; --c5: #db61a2 } }
.demo text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: var(--ink) }
.demo .title { font-size: 17px; font-weight: 600 } .demo .head { font-weight: 600; font-size: 13px }
.demo .faint { fill: var(--faint); font-size: 11px }
.demo .card { fill: var(--page); stroke: var(--edge) } .demo .grid { stroke: var(--grid) }
.demo polyline { fill: none; stroke-width: 1.6 } .demo .dashed { stroke-dasharray: 5 4 }
""" + " ".join(
    f".demo .c{i} {{ stroke: var(--c{i}) }} .demo rect.c{i} {{ fill: var(--c{i}); stroke: none }}"
    for i in range(_COLOURS)
)

#: (Unix time, value), in order.
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: Points
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    unit: str
    lines: Sequence[Line]


def asked(prometheus: Prometheus, began: float, ended: float) -> list[Chart]:
    """What Prometheus answers to the queries of the panels."""
    panels = {panel["title"]: panel for panel in dashboard()["panels"]}
    return [_chart(panels[title], prometheus, began, ended) for title in PANELS]


def _chart(panel: dict[str, Any], prometheus: Prometheus, began: float, ended: float) -> Chart:
    dashed = {each["matcher"]["options"] for each in panel["fieldConfig"]["overrides"]}
    lines = []
    for target in panel["targets"]:
        for series in prometheus.query_range(filled(target["expr"]), ended - began, 1.0, ended):
            name = target["legendFormat"]
            for label, value in series["metric"].items():
                name = name.replace(f"{{{{{label}}}}}", value)
            points = [(at, float(value)) for at, value in series["values"] if math.isfinite(float(value))]
            lines.append(Line(name, points, target["refId"] in dashed))
    return Chart(panel["title"], panel["fieldConfig"]["defaults"]["unit"], lines)


def draw(charts: Sequence[Chart], began: float, ended: float) -> str:
    """All of them as one picture."""
    rows = math.ceil(len(charts) / _COLUMNS)
    drawing = Drawing(_WIDTH, _TOP + rows * _ROW + 8)
    drawing.rect(0.5, 0.5, drawing.width - 1, drawing.height - 1, "card", round=10)
    drawing.text(_MARGIN, 38, "A job that went blind, was drilled, was preempted, and began again", "title")
    day = datetime.fromtimestamp(began, UTC).strftime("%Y-%m-%d")
    drawing.text(_WIDTH - _MARGIN, 38, day, "faint", anchor="end")
    for index, chart in enumerate(charts):
        x = _MARGIN + 44 + index % _COLUMNS * (_WIDTH - 2 * _MARGIN + 18) / _COLUMNS
        _draw(drawing, chart, x, _TOP + index // _COLUMNS * _ROW, began, ended)
    return drawing.render(_STYLE, "Charts of spotguard's dashboard")


def _draw(drawing: Drawing, chart: Chart, x: float, y: float, began: float, ended: float) -> None:
    width, height = _PLOT
    drawing.text(x - 44, y + 12, chart.title, "head")
    top, bottom = y + 24, y + 24 + height
    values = [value for line in chart.lines for _, value in line.points]
    across = Scale(0.0, (ended - began) / 60, x, x + width - 44)  # minutes
    up = Scale(min(0.0, *values, 0.0), max([*values, 0.0]) * 1.08 or 1.0, bottom, top)
    for tick in up.ticks(4):
        drawing.line(x, up(tick), across.end, up(tick), "grid")
        drawing.text(x - 6, up(tick) + 4, _said(tick, chart.unit), "faint", anchor="end")
    for tick in across.ticks(4):
        drawing.text(across(tick), bottom + 15, f"{tick:g} min" if tick else "0", "faint", anchor="middle")
    for index, line in enumerate(chart.lines):
        kind = f"c{index % _COLOURS}" + (" dashed" if line.dashed else "")
        for part in _unbroken(line.points):
            drawing.path([(across((at - began) / 60), up(value)) for at, value in part], kind)
    names = [(f"c{index % _COLOURS}", line.name) for index, line in enumerate(chart.lines)]
    columns = 1 if any(len(name) > _SHORT for _, name in names) else 2
    if (more := len(names) - columns * _NAMED) > 0:
        names = [*names[: columns * _NAMED - 1], ("", f"and {more + 1} more")]
    for index, (kind, name) in enumerate(names):
        left, below = x - 44 + index % columns * 200, bottom + 32 + index // columns * 15
        if kind:
            drawing.rect(left, below - 8, 9, 9, kind, round=2)
        drawing.text(left + 14, below, name, "faint")


def _unbroken(points: Points) -> Iterable[Points]:
    """Its parts: where nothing was recorded for some seconds, nothing is drawn."""
    part: list[tuple[float, float]] = []
    for at, value in points:
        if part and at - part[-1][0] > 3.0:
            yield part
            part = []
        part.append((at, value))
    yield part


def _said(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value * 100:g}%"
    if unit in ("bytes", "Bps"):
        end = "/s" if unit == "Bps" else ""
        for size, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
            if abs(value) >= size:
                return f"{value / size:g} {name}{end}"
    return f"{value:g} s" if unit == "s" else f"{value:g}"


def main() -> int:
    from . import watching

    if (program := find("prometheus")) is None:
        print("Prometheus is not installed: make servers", file=sys.stderr)
        return 1
    with (
        tempfile.TemporaryDirectory() as name,
        watching.played(Path(name), program) as (prometheus, began),
    ):
        ended = time.time()
        picture = _DOCS / "metrics.svg"
        picture.write_text(draw(asked(prometheus, began, ended), began, ended))
        print(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
