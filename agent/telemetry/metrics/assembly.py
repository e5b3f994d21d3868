"""Assembly of the metrics endpoint. It loads Prometheus's library, and only if metrics are requested."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ....providers.clock import Clock
from ....providers.clouds.detect import cloud_of
from ....providers.errors import UsageError
from ....providers.optional_deps import how_to_install
from ...core.budget import expected_window
from ...sources.poller import PollCount
from .recorder import MetricsRecorder
from .scrape import MetricsFacts, Scrape

if TYPE_CHECKING:
    from ...config.options import Options
    from .http import Endpoint


def reader(
    options: Options, run_id: str, meter: MetricsRecorder, looks: PollCount, clock: Clock, *, service: bool
) -> Callable[[], Scrape]:
    """Return the function that a scrape calls on its own thread: it returns the newest snapshot and the time."""
    facts = MetricsFacts(
        "" if options.metrics_port is None else _version(),  # only Prometheus asks; reading it takes 0.5 MiB
        "agent" if service else "run",
        run_id,
        expected_window(cloud_of(options.provider), options.window),
        options.window is not None,
        options.reserve,
        clock.monotonic(),
    )
    return lambda: Scrape(facts, meter.newest, clock.monotonic(), looks.totals)


def endpoint(port: int, read: Callable[[], Scrape]) -> Endpoint:
    """Return an endpoint that listens at the port already.

    Args:
        port: the port on loopback.
        read: returns the data of a scrape.

    Raises:
        UsageError: Prometheus's library is not installed, or the endpoint cannot listen at the port.
    """
    _library(port)
    from prometheus_client import CollectorRegistry, ProcessCollector

    from .collector import Collector
    from .http import Endpoint

    registry = CollectorRegistry()
    registry.register(Collector(read))
    ProcessCollector(registry=registry)  # the agent's own memory and CPU, under their usual names
    return Endpoint(port, registry)


def check(port: int) -> None:
    """Refuse what `endpoint` would refuse. Other programs can use the port meanwhile.

    Raises:
        UsageError: as `endpoint`.
    """
    _library(port)
    from .http import bound

    bound(port).close()


def _library(port: int) -> None:
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"--metrics-port {port}: Prometheus's library is not installed: {how_to_install('metrics')} [SG702]"
        ) from error


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("spotguard")
    except metadata.PackageNotFoundError:  # a checkout that is not installed
        return "unknown"
