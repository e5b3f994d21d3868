"""What a benchmark yields: rows of a table, each with its spread, its figure, and what it is compared with."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


class Unable(Exception):
    """A benchmark cannot be taken on this machine; the message says why, and what would help."""


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that was measured, several times."""

    what: str
    unit: str
    values: tuple[float, ...]
    #: The figure to reach, in the same unit.
    figure: float | None = None
    #: The figure holds for the worst of the values, not only for their median.
    worst: bool = False
    #: A peer's median of the same thing in the same run, and who it is.
    peer: float | None = None
    peer_name: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def cells(self) -> tuple[str, ...]:
        spread = f"{number(min(self.values))} … {number(max(self.values))}"
        figure = ratio = peer = ""
        if self.figure is not None:
            figure = f"≤ {number(self.figure)}"
            ratio = f"{(max(self.values) if self.worst else self.median) / self.figure:.2f}"
        if self.peer:
            peer = f"{self.median / self.peer:.2f} × {self.peer_name}"
        count = len(self.values)
        return self.what, f"{number(self.median)} {self.unit}", spread, str(count), figure, ratio, peer

    def plain(self) -> dict[str, Any]:
        """For the file of raw results."""
        return {
            "what": self.what,
            "unit": self.unit,
            "median": self.median,
            "values": self.values,
            "figure": self.figure,
            "peer": self.peer,
            "peer_name": self.peer_name,
        }


HEADINGS = ("what", "median", "min … max", "n", "figure", "÷ figure", "÷ peer")


def number(value: float) -> str:
    """Three digits that count, never in powers of ten."""
    if value == 0:
        return "0"
    digits = max(0, 2 - len(str(int(abs(value)))) + 1) if abs(value) >= 1 else 3
    return f"{value:.{digits}f}"


def table(rows: Iterable[Row]) -> str:
    """The rows as text in columns, which is also a table in Markdown."""
    cells: list[Sequence[str]] = [HEADINGS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in cells
    )
