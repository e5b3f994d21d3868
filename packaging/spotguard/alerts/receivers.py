"""Receivers of alerts: the kinds that spotguard knows, and the JSON that each takes. Pure.

Alertmanager gets its API's alerts (OpenAPI v2, `POST /api/v2/alerts`), and sends, groups and silences by itself. Slack's
incoming webhooks, and those of others that copy them, take one text. Any other receiver gets plain JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from ..providers.dates import parse_iso
from ..providers.redaction import redacted_text
from ..providers.text import TEXT, clip
from .evaluation import Alert
from .rules import SEVERITIES, Rule, is_rule_name

#: Seconds after which Alertmanager ends an alert that it hears nothing more of: four times the seconds between two messages,
#: as Prometheus does it.
FORGOTTEN_AFTER = 240.0
#: Kinds that are sent only what is new. Alertmanager is sent again what fires.
_KINDS = ("alertmanager", "slack", "json")
#: The number of alerts in one text.
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Origin:
    """The machine and the run that alerts come from."""

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
        """Whether it keeps an alert until somebody ends it. Alertmanager forgets what it hears nothing more of."""
        return self.kind != "alertmanager"

    def body(
        self, alerts: Sequence[Alert], origin: Origin, now: float, wall: Callable[[float], float]
    ) -> Any:
        """Return the JSON for these alerts.

        Args:
            alerts: the alerts.
            origin: where they come from.
            now: monotonic seconds of this message.
            wall: turns monotonic seconds into Unix seconds.
        """
        if self.kind == "alertmanager":
            return [_for_alertmanager(alert, origin, now, wall) for alert in alerts]
        if self.kind == "slack":
            return {"text": _text_of(alerts, origin)}
        return {
            "version": 1,
            "host": origin.host,
            "run_id": origin.run_id,
            "alerts": [as_json(alert, origin, wall) for alert in alerts],
        }


def _kind_of(url: str) -> str:
    parts = urlsplit(url)
    if parts.path.rstrip("/").endswith("/api/v2/alerts") or parts.port == 9093:
        return "alertmanager"
    if parts.hostname == "hooks.slack.com":
        return "slack"
    return "json"


def labels_of(alert: Alert, origin: Origin) -> dict[str, str]:
    """Return the labels that identify the alert everywhere."""
    own = {name: redacted_text(value) for name, value in alert.labels if value}
    common = {"instance": origin.host, "run_id": origin.run_id}
    return {"alertname": alert.rule.name, "severity": alert.rule.severity, **common, **own}


def _for_alertmanager(
    alert: Alert, origin: Origin, now: float, wall: Callable[[float], float]
) -> dict[str, Any]:
    # A label's name has letters, digits and _ (api/v2/openapi.yaml, labelSet; model.LabelName).
    labels = {re.sub(r"\W", "_", name): value for name, value in labels_of(alert, origin).items()}
    return {
        "labels": labels,
        "annotations": {"summary": redacted_text(alert.summary)},
        "startsAt": _time(wall(alert.began)),
        "endsAt": _time(wall(_end(alert, now))),
    }


def _end(alert: Alert, now: float) -> float:
    """Return when the alert ends, or would if nothing more was heard of it. Alertmanager takes an end in the past for the end."""
    if alert.ended is not None:
        return alert.ended
    return max(now + FORGOTTEN_AFTER, alert.until or 0.0)


def ended_by_now(found: object, before: float, now: float) -> list[dict[str, Any]]:
    """Return those alerts of Alertmanager that began before a time, as ended.

    Args:
        found: the answer of its `GET /api/v2/alerts`.
        before: Unix seconds.
        now: Unix seconds of the end.
    """
    old = [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
    same = ("labels", "annotations", "startsAt")
    return [
        {**{name: each[name] for name in same if name in each}, "endsAt": _time(now)}
        for each in old
        if (began := parse_iso(each.get("startsAt"))) is not None and began < before
    ]


def as_json(alert: Alert, origin: Origin, wall: Callable[[float], float]) -> dict[str, Any]:
    """Return one alert for a receiver of plain JSON, and for the record of it."""
    return {
        "alert": alert.rule.name,
        "status": "firing" if alert.ended is None else "resolved",
        "severity": alert.rule.severity,
        "summary": redacted_text(alert.summary),
        "labels": labels_of(alert, origin),
        "startsAt": _time(wall(alert.began)),
        "endsAt": None if alert.ended is None else _time(wall(alert.ended)),
    }


def ended_alert(record: Mapping[str, Any], now: float, wall: float) -> Alert:
    """Return an alert of an earlier agent, as ended, by its record.

    Args:
        record: what `as_json` has made. Another program may have written anything to the store.
        now: monotonic seconds of the end.
        wall: Unix seconds of the end.
    """
    labels = record.get("labels")
    found = labels if isinstance(labels, dict) else {}
    named = {clip(str(name), TEXT): clip(str(value), TEXT) for name, value in found.items()}
    severity = named.pop("severity", SEVERITIES[0])
    name = named.pop("alertname", "")
    rule = Rule(
        name if is_rule_name(name) else "unknown",
        severity=severity if severity in SEVERITIES else SEVERITIES[0],
    )
    began = parse_iso(record.get("startsAt"))
    since = now - (wall - began) if began is not None and 0 <= began <= wall else now
    return Alert(rule, tuple(named.items()), clip(str(record.get("summary", "")), 4 * TEXT), since, ended=now)


def _text_of(alerts: Sequence[Alert], origin: Origin) -> str:
    lines = [_line_of(alert, origin) for alert in alerts[:_SHOWN]]
    if len(alerts) > _SHOWN:
        lines.append(f"and {len(alerts) - _SHOWN} more")
    return "\n".join([f"spotguard, run {_slack(origin.run_id)} on {_slack(origin.host)}:", *lines])


def _line_of(alert: Alert, origin: Origin) -> str:
    state = f"*{alert.rule.severity.upper()}*" if alert.ended is None else "resolved"
    host = labels_of(alert, origin)["instance"]  # of an earlier agent's alert it is another one
    where = "" if host == origin.host else f" on {_slack(host)}"
    return f"{state} {_slack(alert.rule.name)}{where}: {_slack(redacted_text(alert.summary))}"


def _slack(text: str) -> str:
    """Return the text as Slack shows it: three characters control it (Slack's manual, "Formatting text")."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _time(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
