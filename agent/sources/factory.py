"""Which sources of notices an option names. What talks to the network is imported here, and only when it is meant."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...providers.clock import Clock
from ...providers.errors import UsageError
from ...providers.notice import NoticeSource

if TYPE_CHECKING:
    from ..config.options import Options

if TYPE_CHECKING:
    from ..config.options import Options

logger = logging.getLogger("spotguard.agent")


def cloud_sources(options: Options, clock: Clock, root: Path = Path("/")) -> Callable[[], list[NoticeSource]]:
    """What makes the sources, as often as it is called: a source belongs to the thread that looks through it.

    `root` is where the firmware's words lie, for `auto`.

    Raises:
        UsageError: the provider, or its endpoint, cannot be used.
    """
    name, instance = options.provider, ""
    if name == "auto":
        name, instance = _detected(options, root)
    if name == "none":
        if options.metadata_endpoint and options.provider == "none":
            logger.warning(
                "--metadata-endpoint %s is not asked: --provider none watches no cloud. To watch there, say which: "
                "--provider aws, azure or gcp",
                options.metadata_endpoint,
            )
        return list
    if name == "azure":
        return _azure(options, clock)
    if name == "gcp":
        return _gcp(options, clock)
    return _aws(options.metadata_endpoint, instance, clock)


def _aws(endpoint: str | None, instance: str, clock: Clock) -> Callable[[], list[NoticeSource]]:
    from ...providers.clouds.aws.autoscaling import TargetState
    from ...providers.clouds.aws.events import AwsScheduledEvents, Rebalance
    from ...providers.clouds.aws.imds import AwsImds, resolve_endpoint
    from ...providers.clouds.aws.spot import InstanceAction, TerminationTime  # brings the HTTP client

    base = resolve_endpoint(endpoint, os.environ)
    # A token and a connection for each: what hangs at one key must not hold up the one that ends the machine. Four
    # more threads cost 0.2 MiB and 0.02 % of a core.
    keys = (InstanceAction, TerminationTime, Rebalance, AwsScheduledEvents, TargetState)
    return lambda: [key(AwsImds(base, clock, instance=instance), clock) for key in keys]


def _azure(options: Options, clock: Clock) -> Callable[[], list[NoticeSource]]:
    from ...providers.clouds.azure.imds import AzureImds, resolve_endpoint
    from ...providers.clouds.azure.source import AzureScheduledEvents  # brings the HTTP client

    base = resolve_endpoint(options.metadata_endpoint)
    return lambda: [AzureScheduledEvents(AzureImds(base, clock), clock, vm_name=options.vm_name or "")]


def _gcp(options: Options, clock: Clock) -> Callable[[], list[NoticeSource]]:
    from ...providers.clouds.gcp.maintenance import MaintenanceEvent, StopState
    from ...providers.clouds.gcp.metadata import GcpMetadata, resolve_endpoint
    from ...providers.clouds.gcp.preempted import (  # brings the HTTP client
        PreemptedAtOnce,
        PreemptedPlainly,
        PreemptedState,
    )
    from ...providers.clouds.gcp.upcoming import UpcomingMaintenance

    base = resolve_endpoint(options.metadata_endpoint, os.environ)

    def sources() -> list[NoticeSource]:
        # The VM is not told how long its notice is: `--window` says it here, and not only where it is shorter.
        preemption = PreemptedState(clock, options.window)
        preempted = (PreemptedAtOnce, PreemptedPlainly)
        others = (MaintenanceEvent, UpcomingMaintenance, StopState)
        return [
            *(source(GcpMetadata(base), clock, preemption) for source in preempted),
            *(source(GcpMetadata(base), clock) for source in others),
        ]

    return sources


def _detected(options: Options, root: Path) -> tuple[str, str]:
    from ...providers.clouds.detect import detect

    machine = detect(root)
    if machine.cloud == "none" and options.metadata_endpoint:
        raise UsageError(
            f"--metadata-endpoint {options.metadata_endpoint}: this machine's firmware names no cloud, so say which "
            "one answers there: --provider aws, azure or gcp"
        )
    return machine.cloud, machine.instance


# The sources that are no cloud's: what the operator of this machine has said (`--deadline`, `--notice-file`).
#
# A `run` looks through them itself, also where a service agent watches the cloud for it: they were said to this one.


def own_sources(options: Options, clock: Clock) -> list[NoticeSource]:
    """One source for each that was said.

    Raises:
        UsageError: a deadline is past, or another user could meddle with the file.
    """
    found: list[NoticeSource] = []
    if options.deadline is not None:
        from .deadline import DeadlineSource

        found.append(DeadlineSource(options.deadline, clock))
    if options.notice_file is not None:
        from .notice_file import NoticeFile  # here as above: who says neither has neither in memory

        found.append(NoticeFile(Path(options.notice_file), clock))
    return found
