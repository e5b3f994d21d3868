"""The pictures of docs/explanation/benchmarks.md, from the newest full run of `links`: `python -m benchmarks.plots` draws them again.

One picture for each store: on the left how much longer a save takes than the bytes need, link by link; on the right
what a gigabyte costs the processor. Bars of spotguard are coloured, those of the others grey.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from spotguard.report.svg import Drawing, Scale

from .contestants import OURS
from .link_rows import RAW, UNSHAPED, Sample, newest

_DOCS = Path(__file__).parent.parent / "docs" / "images"

_WIDTH, _BAR, _GAP, _LABEL = 880, 13, 12, 204
_LEFT, _RIGHT, _LONGEST = 28, 484, 140
#: Ratios and seconds above these are cut off, and say so by their number: one slow way must not flatten the rest.
_RATIO_MOST, _CPU_MOST = 3.0, 6.0

_STYLE = """
.demo { --page: #ffffff; --edge: #d1d9e0; --ink: #1f2328; --faint: #59636e; --grid: #eaeef2; --ours: #0969da; --other: #c3cad2 }
@media (prefers-color-scheme: dark) { .demo { --page: #0d1117; --edge: #3d444d; --ink: #f0f6fc; --faint: #9198a1;
  --grid: #21262d; --ours: #4493f8; --other: #4f5863 } }
.demo text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: var(--ink) }
.demo .title { font-size: 17px; font-weight: 600 }
.demo .head { font-weight: 600; font-size: 13px }
.demo .faint { fill: var(--faint) }
.demo .card { fill: var(--page); stroke: var(--edge) } .demo .one { stroke: var(--ink) }
.demo .ours { fill: var(--ours) } .demo .other { fill: var(--other) }
"""

#: A bar: who, how long, and whether it is ours.
Bars = Sequence[tuple[str, float]]


def draw(samples: Iterable[Sample], day: str = "", folder: Path = _DOCS) -> list[Path]:
    """A file for each store; their paths."""
    found = list(samples)
    stores = list(dict.fromkeys(each.store for each in found))
    paths = []
    for store in stores:
        path = folder / f"links-{store.lower()}.svg"
        path.write_text(_picture(store, [each for each in found if each.store == store], day))
        paths.append(path)
    return paths


def _picture(store: str, found: list[Sample], day: str) -> str:
    saves = [each for each in found if each.verb == "save" and each.mbit != UNSHAPED]
    plain = [each for each in saves if each.door == "http" and each.way != RAW]
    mbits = sorted({each.mbit for each in plain})
    left = [
        (f"{mbit} Mbit/s", _medians([each for each in plain if each.mbit == mbit], time=True))
        for mbit in mbits
    ]
    right = [
        (name, bars)
        for door, name in (("http", "plain HTTP"), ("https", "TLS"))
        if (bars := _medians([s for s in saves if s.door == door and s.mbit == mbits[-1]], time=False))
    ]
    height = 112 + max(sum(len(bars) * (_BAR + 4) + _GAP + 18 for _, bars in part) for part in (left, right))
    drawing = Drawing(_WIDTH, height)
    drawing.rect(0.5, 0.5, _WIDTH - 1, height - 1, "card", round=10)
    title = f"Saving a training state to {store}"
    drawing.text(_LEFT, 38, title, "title")
    if day:
        drawing.text(_WIDTH - 28, 38, day, "faint", anchor="end")
    drawing.text(_LEFT, 74, "time ÷ (bytes ÷ rate of the link); the mark is 1", "head")
    drawing.text(_RIGHT, 74, f"processor seconds for a GB, at {mbits[-1]} Mbit/s", "head")
    _column(drawing, _LEFT, left, _RATIO_MOST, one=True)
    _column(drawing, _RIGHT, right, _CPU_MOST, one=False)
    return drawing.render(_STYLE, f"{title}, by spotguard and by others")


def _column(
    drawing: Drawing, x: float, groups: Sequence[tuple[str, Bars]], most: float, *, one: bool
) -> None:
    longest = max((value for _, bars in groups for _, value in bars), default=most)
    scale = Scale(0.0, min(most, longest), x + _LABEL, x + _LABEL + _LONGEST)
    y = 88.0
    for name, bars in groups:
        drawing.text(x, y + 12, name, "faint")
        y += 18
        top = y
        for way, value in bars:
            drawing.text(x, y + _BAR - 2, way, "" if way == OURS else "faint")
            end = scale(min(value, scale.high))
            drawing.rect(scale.start, y, end - scale.start, _BAR, "ours" if way == OURS else "other", round=2)
            drawing.text(end + 6, y + _BAR - 2, f"{value:.2f}", "" if way == OURS else "faint")
            y += _BAR + 4
        if one:  # the link itself
            drawing.line(scale(1.0), top - 3, scale(1.0), y - 1, "one")
        y += _GAP


def _medians(samples: Iterable[Sample], *, time: bool) -> list[tuple[str, float]]:
    values: dict[str, list[float]] = {}
    for each in samples:
        values.setdefault(each.way, []).append(each.ratio if time else each.cpu_per_gb)
    return [(way, statistics.median(found)) for way, found in values.items()]


if __name__ == "__main__":
    at, kept = newest()
    for drawn in draw(kept, at.partition(" ")[0]):
        print(drawn)
