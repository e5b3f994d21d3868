"""Receivers of incidents: the kinds that spotguard knows, and the JSON that each takes. Pure.

Alertmanager gets its API's alerts (OpenAPI v2, `POST /api/v2/alerts`), and sends, groups and silences by itself. Slack's
incoming webhooks, and those of others that copy them, take one text. Any other receiver gets plain JSON.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from ..providers.redaction import redacted_text
from .incidents import Incident

#: Seconds after which Alertmanager ends an alert that it hears nothing more of: four times the seconds between two messages,
#: as Prometheus does it. So an incident ends there, too, if the agent and its helper are gone.
FORGOTTEN_AFTER = 240.0
_KINDS = ("alertmanager", "slack", "json")
#: The number of incidents in one text.
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Origin:
    """The machine and the run that incidents come from."""

    host: str
    run_id: str


@dataclass(frozen=True, slots=True)
class Receiver:
    """One receiver.

    Attributes:
        kind: "alertmanager", "slack" or "json".
        url: the URL to post to, which may be a secret.
    """

    kind: str
    url: str

    @classmethod
    def of(cls, given: str) -> Receiver:
        """Return the receiver that `--webhook` names: by the kind before its URL, else by the URL itself."""
        kind, _, url = given.partition(":")
        if kind not in _KINDS:
            kind, url = _kind_of(given), given
        if kind == "alertmanager" and urlsplit(url).path.strip("/") == "":
            url = f"{url.rstrip('/')}/api/v2/alerts"
        return cls(kind, url)

    @property
    def name(self) -> str:
        """The receiver for logs and metrics: no path, no user, nothing secret."""
        parts = urlsplit(self.url)
        port = f":{parts.port}" if parts.port else ""
        return f"{self.kind} {parts.hostname}{port}"

    @property
    def for_people(self) -> bool:
        """Whether it is sent only what is new. Alertmanager is sent again what lasts, or it would forget it."""
        return self.kind != "alertmanager"

    def body(
        self, incidents: Sequence[Incident], origin: Origin, now: float, wall: Callable[[float], float]
    ) -> Any:
        """Return the JSON for these incidents.

        Args:
            incidents: the incidents.
            origin: where they come from.
            now: monotonic seconds of this message.
            wall: turns monotonic seconds into Unix seconds.
        """
        if self.kind == "alertmanager":
            return [_for_alertmanager(each, origin, now, wall) for each in incidents]
        if self.kind == "slack":
            return {"text": _text_of(incidents, origin)}
        return {
            "version": 1,
            "host": origin.host,
            "run_id": origin.run_id,
            "incidents": [_as_json(each, origin, wall) for each in incidents],
        }


def _kind_of(url: str) -> str:
    parts = urlsplit(url)
    if parts.path.rstrip("/").endswith("/api/v2/alerts") or parts.port == 9093:
        return "alertmanager"
    if parts.hostname == "hooks.slack.com":
        return "slack"
    return "json"


def labels_of(incident: Incident, origin: Origin) -> dict[str, str]:
    """Return the labels that identify the incident everywhere."""
    own = {name: redacted_text(value) for name, value in incident.labels}
    common = {"service": "spotguard", "instance": origin.host, "run_id": origin.run_id}
    return {"alertname": incident.name, "severity": incident.severity, **common, **own}


def _for_alertmanager(
    incident: Incident, origin: Origin, now: float, wall: Callable[[float], float]
) -> dict[str, Any]:
    # Alertmanager takes an end in the past for the end, and forgets what lasts once its end is over.
    lasting = max(now + FORGOTTEN_AFTER, incident.until if incident.until < math.inf else 0.0)
    return {
        "labels": labels_of(incident, origin),
        "annotations": {"summary": redacted_text(incident.summary)},
        "startsAt": _time(wall(incident.began)),
        "endsAt": _time(wall(lasting if incident.ended is None else incident.ended)),
    }


def _as_json(incident: Incident, origin: Origin, wall: Callable[[float], float]) -> dict[str, Any]:
    return {
        "incident": incident.name,
        "status": "firing" if incident.ended is None else "resolved",
        "severity": incident.severity,
        "summary": redacted_text(incident.summary),
        "labels": labels_of(incident, origin),
        "startsAt": _time(wall(incident.began)),
        "endsAt": None if incident.ended is None else _time(wall(incident.ended)),
    }


def _text_of(incidents: Sequence[Incident], origin: Origin) -> str:
    lines = [_line_of(each) for each in incidents[:_SHOWN]]
    if len(incidents) > _SHOWN:
        lines.append(f"and {len(incidents) - _SHOWN} more")
    return "\n".join([f"spotguard, run {_slack(origin.run_id)} on {_slack(origin.host)}:", *lines])


def _line_of(incident: Incident) -> str:
    state = f"*{incident.severity.upper()}*" if incident.ended is None else "resolved"
    return f"{state} {incident.name}: {_slack(redacted_text(incident.summary))}"


def _slack(text: str) -> str:
    """Return the text as Slack shows it: three characters control it (Slack's manual, "Formatting text")."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _time(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
