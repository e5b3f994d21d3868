"""The agent's metrics as objects of Prometheus's library, each by its name in the table, and the series that they show."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric

from .definitions import METRICS

#: The name of a metric, and the values of its labels.
Key = tuple[str, tuple[str, ...]]
#: A number, or a function that a scrape calls on its own thread.
Number = float | Callable[[], float]


class _Single:
    """A metric without labels. The library shows it from its first moment on, as 0, and a reader would trust that number."""

    def __init__(self, metric: Gauge | Counter) -> None:
        self._metric = metric
        #: Whether its number is known.
        self.known = False

    def describe(self) -> Iterable[Metric]:
        return self._metric.describe()

    def collect(self) -> Iterable[Metric]:
        return self._metric.collect() if self.known else self._metric.describe()


class MetricObjects:
    """The objects of one registry. One thread sets them, except that any thread may count."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # `_created` would double the counters' series, and nothing reads it.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._metrics: dict[str, Gauge | Counter | Histogram] = {}
        self._singles: dict[str, _Single] = {}
        self._groups: dict[Hashable, dict[Key, Number]] = {}
        for metric in METRICS:
            if metric.type == "histogram":
                self._metrics[metric.name] = Histogram(
                    metric.name, metric.help, metric.labels, buckets=metric.bounds, registry=registry
                )
            else:
                kind = Counter if metric.type == "counter" else Gauge
                made = kind(metric.name, metric.help, metric.labels, registry=None)
                self._metrics[metric.name] = made
                if not metric.labels:
                    self._singles[metric.name] = _Single(made)
                registry.register(self._singles.get(metric.name, made))

    def begin(self, name: str, *labels: str) -> None:
        """Show a counter or a histogram at 0: Prometheus sees no rise in a counter that begins with 1."""
        self._metrics[name].labels(*labels)

    def count(self, name: str, *labels: str, by: float = 1.0) -> None:
        """Count up. For any thread."""
        metric = self._metrics[name].labels(*labels)
        assert isinstance(metric, Counter)
        metric.inc(by)

    def observe(self, name: str, *labels: str, value: float) -> None:
        """Count a value in a histogram.

        A value below zero counts as zero: Prometheus would take a falling sum for a counter that was reset.
        """
        metric = self._metrics[name].labels(*labels)
        assert isinstance(metric, Histogram)
        metric.observe(max(0.0, value))

    def replace(self, group: Hashable, numbers: Mapping[Key, Number]) -> None:
        """Show exactly these series of a group, and remove those that it showed before.

        Args:
            group: any name. No series is in two groups.
            numbers: gauges, and the totals of counters.
        """
        before = self._groups.get(group, {})
        for key in before.keys() - numbers.keys():
            self._remove(*key)
        for (name, labels), number in numbers.items():
            if (known := before.get((name, labels))) != number:
                self._set(name, labels, number, known)
        self._groups[group] = dict(numbers)
        if not numbers:
            del self._groups[group]

    def _set(self, name: str, labels: tuple[str, ...], number: Number, before: Number | None) -> None:
        metric = self._metrics[name]
        if labels:
            metric = metric.labels(*labels)
        if isinstance(metric, Gauge):
            if callable(number):
                metric.set_function(number)
            else:
                metric.set(number)
        elif isinstance(metric, Counter) and not callable(number):
            known = before if isinstance(before, int | float) else 0.0
            if number < known:  # the process that counts began anew
                metric.reset()
                known = 0.0
            metric.inc(number - known)
        if not labels:
            self._singles[name].known = True

    def _remove(self, name: str, labels: tuple[str, ...]) -> None:
        metric = self._metrics[name]
        if labels:
            metric.remove(*labels)
            return
        self._singles[name].known = False
        if isinstance(metric, Counter):
            metric.reset()
