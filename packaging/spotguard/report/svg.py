"""The parts of SVG that the picture needs: shapes with a class, and scales with round ticks."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from xml.sax.saxutils import escape


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear map of values from `low` to `high` onto pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)

    def ticks(self, about: int) -> list[float]:
        """Return about `about` round values within the scale, in steps of 1, 2 or 5 times a power of ten."""
        rough = (self.high - self.low) / about
        if rough <= 0:
            return [self.low]
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(index * step, 10) for index in range(first, last + 1)]


@dataclass(slots=True)
class Drawing:
    """Shapes in painting order. The style sheet sets their looks by class."""

    width: int
    height: int
    shapes: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, words: str, kind: str = "", *, anchor: str = "start") -> None:
        self.shapes.append(
            f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def rect(self, x: float, y: float, width: float, height: float, kind: str, *, round: float = 0) -> None:
        self.shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{round:g}" class="{kind}"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        self.shapes.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>')

    def dot(self, x: float, y: float, radius: float, kind: str) -> None:
        self.shapes.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" class="{kind}"/>')

    def path(self, points: Iterable[tuple[float, float]], kind: str) -> None:
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        if joined:
            self.shapes.append(f'<polyline points="{joined}" class="{kind}"/>')

    def render(self, style: str, title: str) -> str:
        """Return the drawing as a complete SVG file, which may also be placed in HTML unchanged."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" class="demo">\n'
            f"<title>{escape(title)}</title>\n<style>{without_variables(style)}</style>\n"
            + "\n".join(self.shapes)
            + "\n</svg>\n"
        )


_PALETTE = re.compile(r"\.demo \{((?: *--[\w-]+: *[^;}]+;?\s*)+)\}")
_DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{\s*" + _PALETTE.pattern + r"\s*\}\n?")
_RULE = re.compile(r"(\.demo[^{}]*)\{([^{}]*)\}")


def without_variables(style: str) -> str:
    """Return the style sheet with the palettes' colours in the place of `var(--name)`.

    Only browsers know variables of CSS; other renderers of SVG, such as librsvg, paint such shapes black. The rules of the
    dark palette stand in a media query, which those renderers skip.
    """
    dark = _DARK.search(style)
    light = _PALETTE.search(style[: dark.start()] if dark else style)
    if dark is None or light is None:
        return style
    rules = style[: light.start()] + style[light.end() : dark.start()] + style[dark.end() :]
    coloured = "".join(
        f"{selector}{{ {'; '.join(colours)} }}\n"
        for selector, body in _RULE.findall(rules)
        if (colours := [each.strip() for each in body.split(";") if "var(" in each])
    )
    at_night = _filled(coloured, dark[1])
    return f"{_filled(rules, light[1])}@media (prefers-color-scheme: dark) {{\n{at_night}}}\n"


def _filled(rules: str, palette: str) -> str:
    colours = dict(re.findall(r"(--[\w-]+): *([^;}\s]+)", palette))
    return re.sub(r"var\((--[\w-]+)\)", lambda found: colours[found[1]], rules)
