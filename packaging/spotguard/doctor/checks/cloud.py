"""The check of the cloud and its notices: the cloud that DMI names or the user passed, and one real poll of each source.

The sources are the agent's own, so the findings are what `run` would see. If no cloud is named, this check sends nothing.
The SDK of a store without credentials still asks the metadata service for some, as it does in the job.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotguard.agent.config.options import Options
from spotguard.agent.sources import factory
from spotguard.providers.clock import Clock
from spotguard.providers.clouds.detect import Detection, detect
from spotguard.providers.health import Health, blind
from spotguard.providers.notice import NoticeSource, Severity, Sighting

from ..finding import Finding, fails, ok, warning
from ..timeouts import all_within, within

#: Seconds for one poll of all sources at once. A source that answers needs less, and so does one that fails twice. Only
#: Azure's may need longer, and it has reported "starting" by then.
LOOK = 12.0

#: Reasons that pass by themselves, because the agent polls again until the source answers.
PASSES = ("starting", "throttled", "server-error")
#: Reasons after one request without an answer in time. The agent polls again after a second; the doctor does so once.
_UNANSWERED = ("timeout", "hop-limit")

_NO_CLOUD = "none is needed for SIGTERM and drills. On a spot machine pass --provider aws, azure or gcp"
_HARMLESS = "nothing: no notice is hidden by it"
_HANGS = "run the doctor again; where it stays so, look for a firewall between this user and the service"


@dataclass(frozen=True, slots=True)
class CloudSight:
    """The findings about the cloud."""

    #: "aws", "gcp", "azure" or "none".
    cloud: str
    findings: tuple[Finding, ...]
    #: Seconds of warning, if the cloud's own service reports them.
    window: float | None = None


def look(options: Options, clock: Clock, root: Path = Path("/")) -> CloudSight:
    """Name the cloud, and poll each of its sources once.

    Args:
        options: the options of the visit.
        clock: times the polls.
        root: root of the file system that has the firmware's DMI files.

    Raises:
        UsageError: the provider, or its endpoint, cannot be used.
    """
    machine = detect(root)
    cloud = machine.cloud if options.provider == "auto" else options.provider
    named = _named(cloud, options, machine)
    made = factory.cloud_sources(options, clock, root)()
    if cloud == "none":
        return CloudSight(cloud, (named,))
    sightings = _looks(made, clock)
    return CloudSight(cloud, (named, *_seen(made, sightings)), _told(cloud, made))


def _told(cloud: str, made: Sequence[NoticeSource]) -> float | None:
    """Return the seconds of warning that the service itself reports. Only GCE's does, for a VM made with a longer notice."""
    if cloud != "gcp":
        return None
    from spotguard.providers.clouds.gcp.preempted import PreemptedPlainly

    return next((source.told for source in made if isinstance(source, PreemptedPlainly)), None)


def _named(cloud: str, options: Options, machine: Detection) -> Finding:
    if options.provider == "none":
        return warning("cloud", "none is watched (--provider none)", _NO_CLOUD, cloud=cloud)
    if options.provider != "auto":
        return ok("cloud", f"{cloud}, by --provider", cloud=cloud)
    if cloud != "none":
        return ok("cloud", f"{cloud}, by this machine's firmware (DMI)", cloud=cloud)
    hidden = ", ".join(f"/{name}" for name in machine.unknown)
    unsure = f"; not to be read: {hidden}" if hidden else ""
    return warning("cloud", f"this machine's firmware names none (DMI){unsure}", _NO_CLOUD, cloud=cloud)


def _looks(made: Sequence[NoticeSource], clock: Clock) -> list[Sighting]:
    """Poll all sources at once. A source whose poll does not return counts as blind."""
    polls = all_within(LOOK, clock, [lambda one=source: _look(one) for source in made], "look")  # type: ignore[misc]
    late = Sighting(blind("overdue", f"no look came to its end in {LOOK:g} s", _HANGS))
    return [late if aside is None else aside.value() for aside in polls]


def _look(source: NoticeSource) -> Sighting:
    try:
        seen = source.poll()
        return source.poll() if seen.health.reason in _UNANSWERED else seen
    finally:
        source.close()


def _seen(made: Sequence[NoticeSource], sightings: Sequence[Sighting]) -> Iterator[Finding]:
    """Yield one finding for all sources that see, one for each problem, however many sources have it, and the notices."""
    alike: dict[Health, list[str]] = {}
    for source, sighting in zip(made, sightings, strict=True):
        health = sighting.health
        # The detail names each source's own request, so the advice tells problems apart.
        key = next((one for one in alike if _same(one, health)), health)
        alike.setdefault(key, []).append(source.name)
    for health, names in alike.items():
        yield _finding(health, names)
    for sighting in sightings:
        for notice in sighting.notices:
            standing = f"{notice.kind} from {notice.source}" + (
                f" ({notice.detail})" if notice.detail else ""
            )
            if notice.severity is Severity.TERMINAL:
                yield fails("notices", f"a notice stands NOW: {standing}", "this machine goes: use another")
            else:
                yield warning("notices", f"announced: {standing}", "training continues until it is near")


def _same(one: Health, other: Health) -> bool:
    return (one.sight, one.reason, one.advice, one.seeing and one.detail) == (
        other.sight,
        other.reason,
        other.advice,
        other.seeing and other.detail,
    )


def _finding(health: Health, names: Sequence[str]) -> Finding:
    who = names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
    facts: dict[str, Any] = {"sources": list(names), "sight": str(health.sight), "reason": health.reason}
    if health.seeing:
        if not health.detail:
            return ok("notices", f"seeing: {who}", **facts)
        return warning("notices", f"seeing: {who}; {health.detail}", health.advice or _HARMLESS, **facts)
    found = f"{str(health.sight).upper()} ({health.reason}): {who}: {health.detail}"
    if health.reason in PASSES:
        return warning("notices", found, _later(health), **facts)
    return fails("notices", found, health.advice, **facts)


def _later(health: Health) -> str:
    if health.reason == "starting":
        return "it continues by itself: run the doctor again in two minutes"
    return health.advice


def dated(cloud: str, options: Options, clock: Clock) -> Mapping[str, str]:
    """Return the headers of any answer of the metadata service, for their date; empty if there is no answer."""
    if cloud == "none":
        return {}
    from spotguard.providers.clouds.aws import imds as aws_imds
    from spotguard.providers.clouds.azure import imds as azure_imds
    from spotguard.providers.clouds.gcp import metadata
    from spotguard.providers.clouds.http import MetadataAnswer, MetadataClient

    endpoint = options.metadata_endpoint
    if cloud == "aws":
        base = aws_imds.resolve_endpoint(endpoint, os.environ)
    elif cloud == "gcp":
        base = metadata.resolve_endpoint(endpoint, os.environ)
    else:
        base = azure_imds.resolve_endpoint(endpoint)
    client = MetadataClient(base)
    try:
        answer = within(LOOK, clock, lambda: client.send(client.prepare("GET", "/", {})), "date")
    except TimeoutError:
        return {}
    finally:
        client.close()
    return answer.headers if isinstance(answer, MetadataAnswer) else {}
