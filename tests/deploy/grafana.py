"""The alerts of `rules.yml` as Grafana's file provisioning takes them. `python -m tests.docs.generated` writes the file.

The format is that of Grafana's `pkg/services/provisioning/alerting/rules_types.go`. The three queries of each rule are those of
Grafana's own import of Prometheus rules (`pkg/services/ngalert/prom/query.go`): a series that the expression returns fires, whatever
its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from spotguard.deploy.monitoring import text

yaml: Any = import_module("yaml")  # it has no types

NAME = "grafana-alerts.yml"
#: The data source's `uid`, to be changed by whoever has another.
DATA_SOURCE = "prometheus"

_HEAD = """\
# The alerts of rules.yml for Grafana's own alerting, with the same expressions. docs/how-to/alerts.md explains where it goes.
# In spotguard's source, tests/deploy/grafana.py makes it from rules.yml.
"""
#: A sentence that asks Prometheus once more, which Grafana's templates cannot.
_ASKS = re.compile(r"[^.]*\{\{ range query .*?\{\{ end \}\}\.\s*")


def prometheus_alerts() -> Iterator[dict[str, Any]]:
    """Yield the alerts of `rules.yml`."""
    for group in yaml.safe_load(text("rules.yml"))["groups"]:
        yield from (rule for rule in group["rules"] if "alert" in rule)


def grafana_alerts() -> str:
    """Return the text of the provisioning file."""
    group = {
        "orgId": 1,
        "name": "spotguard",
        "folder": "spotguard",
        "interval": "10s",  # as `evaluation_interval` of prometheus.yml
        "rules": [_rule(alert) for alert in prometheus_alerts()],
    }
    body = yaml.safe_dump({"apiVersion": 1, "groups": [group]}, sort_keys=False, width=130)
    return f"{_HEAD}{body}"


def _rule(alert: dict[str, Any]) -> dict[str, Any]:
    name = alert["alert"]
    return {
        "uid": "-".join(re.findall("[A-Z][a-z]*", name)).lower(),
        "title": name,
        "condition": "threshold",
        "data": [
            _query(
                "query", DATA_SOURCE, {"expr": alert["expr"].strip(), "instant": True, "range": False}, 600
            ),
            _query(
                "math",
                "__expr__",
                {"type": "math", "expression": "is_number($query) || is_nan($query) || is_inf($query)"},
            ),
            _query(
                "threshold",
                "__expr__",
                {
                    "type": "threshold",
                    "expression": "math",
                    "conditions": [{"evaluator": {"type": "gt", "params": [0]}}],
                },
            ),
        ],
        # As in Prometheus: no series is no alert, and an alert ends with its series.
        "noDataState": "OK",
        "execErrState": "Error",
        "missing_series_evals_to_resolve": 1,
        "for": alert.get("for", "0s"),
        "labels": alert["labels"],
        "annotations": {key: _template(value) for key, value in alert["annotations"].items()},
    }


def _query(name: str, source: str, model: dict[str, Any], seconds: int = 0) -> dict[str, Any]:
    return {
        "refId": name,
        "relativeTimeRange": {"from": seconds, "to": 0},
        "datasourceUid": source,
        "model": {"refId": name, **model},
    }


def _template(text: str) -> str:
    """Return an annotation for Grafana. It expands `$name` from its own environment, so no variable is left."""
    text = _ASKS.sub("", text)
    return text.replace("$labels.", ".Labels.").replace("$value", ".Values.query.Value").strip()
