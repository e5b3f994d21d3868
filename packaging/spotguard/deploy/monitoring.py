"""Monitoring files for operators: rules and a scrape for Prometheus, a dashboard and alerts for Grafana, an input for Filebeat.

`docs/reference/metrics.md` explains the purpose of each.
"""

from __future__ import annotations

from importlib import resources

#: The files, each with a description.
FILES = {
    "rules.yml": "Prometheus: what is recorded, and the alerts",
    "prometheus.yml": "Prometheus: a scrape of this machine's agents, with these rules",
    "dashboard.json": "Grafana: the dashboard, to be imported",
    "grafana-alerts.yml": "Grafana: the alerts of rules.yml, for its own alerting",
    "filebeat.yml": "Filebeat: the lines of --json-log to Elasticsearch",
}


def text(name: str) -> str:
    """Return the text of the file `name`, as spotguard ships it."""
    return resources.files(__package__).joinpath("template-files", name).read_text()
