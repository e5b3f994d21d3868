"""Assembly of the metrics and their endpoint. It loads Prometheus's library, so it is loaded only for `--metrics-port`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ....providers.clock import Clock
from ....providers.clouds.detect import cloud_of
from ....providers.errors import UsageError
from ....providers.optional_deps import how_to_install
from ...core.budget import expected_window

if TYPE_CHECKING:
    from ...config.options import Options
    from .http import Endpoint
    from .recorder import MetricsRecorder


def opened(
    options: Options, port: int, run_id: str, clock: Clock, *, service: bool
) -> tuple[MetricsRecorder, Endpoint]:
    """Return the recorder of an agent's metrics, and an endpoint that listens at the port already.

    Raises:
        UsageError: Prometheus's library is not installed, or the endpoint cannot listen at the port.
    """
    # With these variables of a web server, the library would write the agent's numbers among those of the command.
    for name in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
        os.environ.pop(name, None)
    _library(port)
    from prometheus_client import CollectorRegistry, ProcessCollector

    from .http import Endpoint
    from .processes import ExpectedWindow
    from .recorder import MetricsFacts, MetricsRecorder

    registry = CollectorRegistry()
    seconds = expected_window(cloud_of(options.provider), options.window)
    window = ExpectedWindow(seconds, options.window is not None, options.reserve)
    facts = MetricsFacts(_version(), "agent" if service else "run", run_id, window)
    recorder = MetricsRecorder(registry, facts, clock.monotonic)
    ProcessCollector(registry=registry)  # the agent's own memory and CPU, under their usual names
    return recorder, Endpoint(port, registry)


def check(port: int) -> None:
    """Refuse what `opened` would refuse. Other programs can use the port meanwhile.

    Raises:
        UsageError: as `opened`.
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
