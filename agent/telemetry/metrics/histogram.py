"""A histogram as a value: to observe is to make the next one, so that whoever reads has one that stands."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many observations were at most so large, by bound, and their sum."""

    bounds: tuple[float, ...]
    #: One for each bound, not added up, and one for what is above all of them.
    counts: tuple[int, ...]
    sum: float = 0.0

    @classmethod
    def empty(cls, bounds: tuple[float, ...]) -> Self:
        return cls(bounds, (0,) * (len(bounds) + 1))

    def observe(self, value: float) -> Histogram:
        """With this one more. Below zero counts as zero: a sum that fell would be a counter that was reset."""
        value = max(0.0, value)
        at = bisect_left(self.bounds, value)
        counts = (*self.counts[:at], self.counts[at] + 1, *self.counts[at + 1 :])
        return Histogram(self.bounds, counts, self.sum + value)

    @property
    def cumulative(self) -> list[tuple[str, float]]:
        """As Prometheus has it: each bound with all that is below, "+Inf" last."""
        total, buckets = 0, []
        for bound, count in zip((*map(_written, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets


def _written(bound: float) -> str:
    """The way of Prometheus's own clients: 1.0 and not 1."""
    return repr(float(bound))
