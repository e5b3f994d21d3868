"""The picture of growth with ranks in docs/explanation/benchmarks.md: `python -m benchmarks.growth` draws the newest full run of `manifests`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from spotguard.report.svg import Drawing, Scale

_RESULTS = Path(__file__).parent / "results"
_DOCS = Path(__file__).parent.parent / "docs" / "images"
_WIDTH, _HEIGHT = 880, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 78.0, 560.0, 84.0, 384.0

#: Each line: its name, how its row ends, whether its figure is the peer's, and its class.
_LINES = (
    ("commit: manifests read, checked", "read and checked", False, "check"),
    (
        "commit: fetched too, 30 ms away",
        "committed, the store 30 ms away at 1 Gbit/s",
        False,
        "whole",
    ),
    ("restore: index read, reads planned", "one rank's reads planned", False, "plan"),
    ("DCP: the coordinator's global plan", "read and checked", True, "other"),
    ("DCP: .metadata read, reads planned", "one rank's reads planned", True, "other"),
)

#: Colours are written where they are used: a renderer that knows no variables of CSS paints black.
_STYLE = """
.demo text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.demo .title { font-size: 17px; font-weight: 600 }
.demo .faint { fill: #59636e }
.demo .card { fill: #ffffff; stroke: #d1d9e0 }
.demo .grid { stroke: #eaeef2 }
.demo polyline { fill: none; stroke-width: 2 }
.demo .check { stroke: #0969da; fill: #0969da } .demo .whole { stroke: #1a7f37; fill: #1a7f37 }
.demo .plan { stroke: #8250df; fill: #8250df } .demo .other { stroke: #9aa4af; fill: #9aa4af }
.demo polyline.check, .demo polyline.whole, .demo polyline.plan, .demo polyline.other { fill: none }
"""

Points = list[tuple[float, float]]


def newest() -> tuple[str, list[dict[str, object]]]:
    """The day and the rows of the newest run that has all sizes."""
    for path in sorted(_RESULTS.glob("*.json"), reverse=True):
        for run in reversed(json.loads(path.read_text())):
            if any(row["what"].startswith("manifests of 4,096 ranks") for row in run["rows"]):
                return path.stem, run["rows"]
    raise SystemExit("no full run of `python -m benchmarks manifests` is recorded on this machine")


def lines(rows: Iterable[Mapping[str, object]]) -> dict[str, Points]:
    """The points of each line: ranks and seconds."""
    found: dict[str, Points] = {name: [] for name, *_ in _LINES}
    for row in rows:
        what = str(row["what"])
        for name, end, peer, _ in _LINES:
            value = row["peer"] if peer else row["median"]
            if what.startswith("manifests of ") and what.endswith(end) and isinstance(value, (int, float)):
                ranks = int(what.removeprefix("manifests of ").partition(" ")[0].replace(",", ""))
                found[name].append((ranks, float(value)))
    return found


def draw(day: str, rows: Iterable[Mapping[str, object]]) -> str:
    """The picture: seconds over ranks, both in powers of ten."""
    found = lines(rows)
    every = [point for points in found.values() for point in points]
    ranks = sorted({x for x, _ in every})
    low, high = (
        math.floor(math.log10(min(y for _, y in every))),
        math.ceil(math.log10(max(y for _, y in every))),
    )
    across = Scale(math.log10(ranks[0]), math.log10(ranks[-1]), _LEFT, _RIGHT)
    up = Scale(low, high, _BOTTOM, _TOP)
    drawing = Drawing(_WIDTH, _HEIGHT)
    drawing.rect(0.5, 0.5, _WIDTH - 1, _HEIGHT - 1, "card", round=10)
    title = "Commit and restore planning as a job grows, 2,169 tensors a rank"
    drawing.text(28, 38, title, "title")
    drawing.text(_WIDTH - 28, 38, day, "faint", anchor="end")
    drawing.text(28, 64, "seconds, two cores", "faint")
    for power in range(low, high + 1):
        drawing.line(_LEFT, up(power), _RIGHT, up(power), "grid")
        drawing.text(_LEFT - 8, up(power) + 4, f"{10.0**power:g}", "faint", anchor="end")
    for x in ranks:
        drawing.text(across(math.log10(x)), _BOTTOM + 20, f"{x:,.0f}", "faint", anchor="middle")
    drawing.text((_LEFT + _RIGHT) / 2, _BOTTOM + 40, "ranks", "faint", anchor="middle")
    at = _BOTTOM
    ended = [(name, kind, found[name]) for name, _, _, kind in _LINES if found[name]]
    for name, kind, points in sorted(ended, key=lambda line: line[2][-1][1]):
        places = [(across(math.log10(x)), up(math.log10(y))) for x, y in points]
        drawing.path(places, kind)
        for x, y in places:
            drawing.dot(x, y, 3, kind)
        x, y = places[-1]
        if points[-1][0] == ranks[-1]:  # names beside each other must not overlap
            x, y = _RIGHT + 6, (at := min(at - 18, y))
        drawing.text(x + 10, y + 4, f"{name}: {points[-1][1]:.3g} s")
    return drawing.render(_STYLE, title)


if __name__ == "__main__":
    path = _DOCS / "manifests.svg"
    path.write_text(draw(*newest()))
    print(path)
