"""Factory of the notice sources that the options name. It imports network code only if an option needs it."""

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

logger = logging.getLogger("spotguard.agent")


def cloud_sources(options: Options, clock: Clock, root: Path = Path("/")) -> Callable[[], list[NoticeSource]]:
    """Return a function that makes new sources at each call, because a source belongs to the thread that polls it.

    Args:
        options: the provider, its endpoint and the window.
        clock: the clock of the sources.
        root: the root of the file system in which `auto` reads the firmware's strings.

    Raises:
        UsageError: the provider, or its endpoint, cannot be used.
    """
    name, instance = options.provider, ""
    if name == "auto":
        name, instance = _detected(options, root)
    if name == "none":
        if options.metadata_endpoint and options.provider == "none":
            logger.warning(
                "--metadata-endpoint %s is not used: --provider none watches no cloud. To use it, pass "
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
    # Each key has its own token and connection. So a poll that hangs at one key does not delay the key that ends the
    # machine. Four more threads cost 0.2 MiB and 0.02 % of a core.
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
        # The metadata service does not tell the VM how long its notice is. So `--window` sets the length here, also a longer
        # one.
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
            f"--metadata-endpoint {options.metadata_endpoint}: this machine's firmware names no cloud, so pass "
            "--provider aws, azure or gcp as well [SG108]"
        )
    return machine.cloud, machine.instance


# The operator's own sources (`--deadline`, `--notice-file`), which belong to no cloud.
#
# A `run` polls them itself, even if a service agent polls the cloud for it: the operator gave them to this run.


def own_sources(options: Options, clock: Clock) -> list[NoticeSource]:
    """Return one source for each of these options that is set.

    Raises:
        UsageError: a deadline is past, or another user could meddle with the file.
    """
    sources: list[NoticeSource] = []
    if options.deadline is not None:
        from .deadline import DeadlineSource

        sources.append(DeadlineSource(options.deadline, clock))
    if options.notice_file is not None:
        from .notice_file import NoticeFile  # as above: an unused source takes no memory

        sources.append(NoticeFile(Path(options.notice_file), clock))
    return sources
