"""A histogram as an immutable value: `observe` returns a new one, so that a reader's histogram never changes."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Histogram:
    """The number of observations in each bucket, and their sum."""

    #: The upper bound of each bucket.
    bounds: tuple[float, ...]
    #: One count for each bound, not cumulative, and one for observations above all bounds.
    counts: tuple[int, ...]
    sum: float = 0.0

    @classmethod
    def empty(cls, bounds: tuple[float, ...]) -> Self:
        return cls(bounds, (0,) * (len(bounds) + 1))

    def observe(self, value: float) -> Histogram:
        """Return a histogram with one more observation.

        A value below zero counts as zero: Prometheus would take a falling sum for a counter that was reset.
        """
        value = max(0.0, value)
        at = bisect_left(self.bounds, value)
        counts = (*self.counts[:at], self.counts[at] + 1, *self.counts[at + 1 :])
        return Histogram(self.bounds, counts, self.sum + value)

    @property
    def cumulative(self) -> list[tuple[str, float]]:
        """The buckets in Prometheus's form: each bound with the count of all observations up to it, "+Inf" last."""
        total, buckets = 0, []
        for bound, count in zip((*map(_written, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets


def _written(bound: float) -> str:
    """Return a bound as Prometheus's own clients write it: 1.0 and not 1."""
    return repr(float(bound))
