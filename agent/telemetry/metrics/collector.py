"""The collector for Prometheus's own library: it makes samples from the newest snapshot at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import (
    Metric as Family,
)

from .definitions import METRICS
from .histogram import Histogram
from .scrape import Metric, Sample, Scrape


class Collector:
    """The collector of the agent's metrics.

    Args:
        read: returns the data of a scrape. It is called at each scrape, on the scrape's thread.
    """

    def __init__(self, read: Callable[[], Scrape]) -> None:
        self._read = read

    def collect(self) -> Iterator[Family]:
        reading = self._read()
        for metric in METRICS:
            yield family(metric, metric.read(reading))

    def describe(self) -> Iterator[Family]:
        """Yield the metrics without samples, so that the registry can answer a request for some names (`?name[]=`)."""
        for metric in METRICS:
            yield family(metric, ())


def family(metric: Metric, samples: Iterable[Sample]) -> Family:
    """Return one metric with its samples."""
    if metric.type == "histogram":
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, value in samples:
            if isinstance(value, Histogram):
                histogram.add_metric(labels, value.cumulative, value.sum)
        return histogram
    kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
    made = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        if not isinstance(value, Histogram):
            made.add_metric(labels, value)
    return made
