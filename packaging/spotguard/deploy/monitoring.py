"""What an operator watches spotguard with, ready to be installed: rules and a scrape for Prometheus, a dashboard for Grafana,
an input for Filebeat. `docs/metrics.md` says what each is for.
"""

from __future__ import annotations

from importlib import resources

#: The files, with what each is.
FILES = {
    "rules.yml": "Prometheus: what is recorded, and the alerts",
    "prometheus.yml": "Prometheus: a scrape of this machine's agents, with these rules",
    "dashboard.json": "Grafana: the dashboard, to be imported",
    "filebeat.yml": "Filebeat: the lines of --json-log to Elasticsearch",
}


def text(name: str) -> str:
    """One of them, as it is shipped."""
    return resources.files(__package__).joinpath("templates", name).read_text()
