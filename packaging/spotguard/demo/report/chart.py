"""The loss curves' series, and the frame around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spotguard.report.svg import Drawing, Scale


@dataclass(frozen=True, slots=True)
class Series:
    """Losses by step. `name` is the first word of the series' classes in the style sheet."""

    name: str
    by_step: Mapping[int, float]

    @property
    def points(self) -> list[tuple[int, float]]:
        return sorted(self.by_step.items())


def steps(series: Series, first: int, last: int) -> Series:
    """Return the series' steps from `first` to `last`."""
    return Series(series.name, {step: loss for step, loss in series.by_step.items() if first <= step <= last})


def means(series: Series, over: Mapping[int, float], width: int) -> Series:
    """Return, for each step of the series, the mean of the losses in `over` at the `width` steps up to it."""
    averages = {}
    for step in series.by_step:
        newest = [over[at] for at in range(step - width + 1, step + 1) if at in over]
        averages[step] = sum(newest) / len(newest)
    return Series(series.name, averages)


def frame(
    drawing: Drawing, series: Iterable[Series], *, left: float, right: float, top: float, bottom: float
) -> tuple[Scale, Scale]:
    """Draw grid and ticks around the series, and return the scales of steps and of losses."""
    points = [point for one in series for point in one.points]
    numbers, losses = [step for step, _ in points], [loss for _, loss in points]
    margin = (max(losses) - min(losses)) * 0.06
    x = Scale(min(numbers), max(numbers), left, right)
    y = Scale(min(losses) - margin, max(losses) + margin, bottom, top)
    for value in y.ticks(4):
        drawing.line(left, y(value), right, y(value), "grid")
        drawing.text(left - 8, y(value) + 4, f"{value:g}", "tick", anchor="end")
    for value in x.ticks(max(3, int((right - left) / 80))):
        drawing.line(x(value), bottom, x(value), bottom + 4, "axis")
        drawing.text(x(value), bottom + 17, f"{value:,.0f}", "tick", anchor="middle")
    drawing.line(left, bottom, right, bottom, "axis")
    return x, y
