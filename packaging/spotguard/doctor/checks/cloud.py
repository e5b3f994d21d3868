"""Whose notices this machine would see: the cloud that DMI names or somebody said, and one real look of each real source.

They are the agent's own sources, asked once, so that what is said here is what `run` would see. Where no cloud is named
nothing is sent from here. A store's SDK that has no credentials asks the metadata service for some all the same, as in the job.
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

#: Seconds for a look of every source, all at once. Longer than any of them takes that answers, or finds out why not twice;
#: Azure's alone may take longer, and has said "starting" by then.
LOOK = 12.0

#: What passes by itself: it is asked again until it answers.
PASSES = ("starting", "throttled", "server-error")
#: What one request says that was not answered in time. The agent looks again in a second, and so do we, once.
_UNANSWERED = ("timeout", "hop-limit")

_NO_CLOUD = (
    "none is needed for SIGTERM and drills. On a spot machine say which it is: --provider aws, azure or gcp"
)
_HARMLESS = "nothing: no notice is hidden by it"
_HANGS = "run the doctor again; where it stays so, look for a firewall between this user and the service"


@dataclass(frozen=True, slots=True)
class CloudSight:
    """What was found of the cloud."""

    #: "aws", "gcp", "azure" or "none".
    cloud: str
    findings: tuple[Finding, ...]
    #: Seconds of warning, where the cloud's own service tells them.
    window: float | None = None


def look(options: Options, clock: Clock, root: Path = Path("/")) -> CloudSight:
    """
    Args:
        root: where the firmware's words lie.

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
    """Seconds of warning as the service itself tells them: GCE's alone does, of a VM that was made so."""
    if cloud != "gcp":
        return None
    from spotguard.providers.clouds.gcp.preempted import PreemptedPlainly

    return next((source.told for source in made if isinstance(source, PreemptedPlainly)), None)


def _named(cloud: str, options: Options, machine: Detection) -> Finding:
    if options.provider == "none":
        return warning("cloud", "none is watched (--provider none)", _NO_CLOUD, cloud=cloud)
    if options.provider != "auto":
        return ok("cloud", f"{cloud}, as --provider says", cloud=cloud)
    if cloud != "none":
        return ok("cloud", f"{cloud}, as this machine's firmware says (DMI)", cloud=cloud)
    hidden = ", ".join(f"/{name}" for name in machine.unknown)
    unsure = f"; not to be read: {hidden}" if hidden else ""
    return warning("cloud", f"this machine's firmware names none (DMI){unsure}", _NO_CLOUD, cloud=cloud)


def _looks(made: Sequence[NoticeSource], clock: Clock) -> list[Sighting]:
    """One look of each, all at once; what does not come back is blind."""
    found = all_within(LOOK, clock, [lambda one=source: _look(one) for source in made], "look")  # type: ignore[misc]
    late = Sighting(blind("overdue", f"no look came to its end in {LOOK:g} s", _HANGS))
    return [late if aside is None else aside.value() for aside in found]


def _look(source: NoticeSource) -> Sighting:
    try:
        seen = source.poll()
        return source.poll() if seen.health.reason in _UNANSWERED else seen
    finally:
        source.close()


def _seen(made: Sequence[NoticeSource], sightings: Sequence[Sighting]) -> Iterator[Finding]:
    """A line for all that see, and one for each thing that is wrong, whatever the number of keys that suffer from it."""
    alike: dict[Health, list[str]] = {}
    for source, sighting in zip(made, sightings, strict=True):
        health = sighting.health
        # Each names its own request: what to do is what tells them apart.
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
                yield warning("notices", f"announced: {standing}", "training goes on until it is near")


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
        return "it goes on without us: run the doctor again in two minutes"
    return health.advice


def dated(cloud: str, options: Options, clock: Clock) -> Mapping[str, str]:
    """The headers of any answer of the metadata service; none where it gives none. For the time that they tell."""
    if cloud == "none":
        return {}
    from spotguard.providers.clouds.aws import imds as aws_imds
    from spotguard.providers.clouds.azure import imds as azure_imds
    from spotguard.providers.clouds.gcp import metadata
    from spotguard.providers.clouds.http import MetadataAnswer, MetadataClient

    said = options.metadata_endpoint
    if cloud == "aws":
        base = aws_imds.resolve_endpoint(said, os.environ)
    elif cloud == "gcp":
        base = metadata.resolve_endpoint(said, os.environ)
    else:
        base = azure_imds.resolve_endpoint(said)
    client = MetadataClient(base)
    try:
        answer = within(LOOK, clock, lambda: client.send(client.prepare("GET", "/", {})), "date")
    except TimeoutError:
        return {}
    finally:
        client.close()
    return answer.headers if isinstance(answer, MetadataAnswer) else {}
