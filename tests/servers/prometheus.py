"""Prometheus on loopback, with spotguard's own rules, scraping what a test names: many looks in the time of one."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import requests

from tests.servers.program import Server

#: Seconds between two scrapes: as often as a busy machine can.
INTERVAL = 0.5


class Prometheus(Server):
    """The server.

    Args:
        program: Debian's program.
        targets: ports on loopback, by the name that each bears as `instance`.
        alertmanager: the URL of an Alertmanager that gets its alerts; "" for none.
    """

    def __init__(self, program: str, targets: Mapping[str, int], alertmanager: str = "") -> None:
        super().__init__("prometheus")
        self._program = program
        self._targets = targets
        self._alertmanager = alertmanager.removeprefix("http://")

    def commands(self) -> Sequence[Sequence[str]]:
        self.endpoint = f"http://127.0.0.1:{self.port()}"
        rules = (files("spotguard.deploy") / "template-files" / "rules.yml").read_text()
        (self.folder / "rules.yml").write_text(rules)
        scrape = [
            {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name}}
            for name, port in self._targets.items()
        ]
        config = {
            "global": {
                "scrape_interval": f"{INTERVAL * 1000:.0f}ms",
                "scrape_timeout": f"{INTERVAL * 1000:.0f}ms",
                "evaluation_interval": "1s",
            },
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "spotguard", "static_configs": scrape}],
        }
        if self._alertmanager:
            to = {"static_configs": [{"targets": [self._alertmanager]}]}
            config["alerting"] = {"alertmanagers": [to]}
        (self.folder / "prometheus.yml").write_text(json.dumps(config))  # which is YAML, too
        address = self.endpoint.removeprefix("http://")
        return [
            [
                self._program,
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=data",
                f"--web.listen-address={address}",
                "--log.level=warn",
            ]
        ]

    def answers(self) -> bool:
        return self._session.get(f"{self.endpoint}/-/ready", timeout=10).ok

    @property
    def _session(self) -> requests.Session:
        session = requests.Session()
        session.trust_env = False  # no proxy stands between us and loopback
        return session

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples now."""
        return self._ask("query", query=expression)

    def query_range(
        self, expression: str, seconds: float = 60.0, step: float = 1.0, until: float | None = None
    ) -> list[dict[str, Any]]:
        """The series of the last seconds."""
        end = time.time() if until is None else until
        return self._ask("query_range", query=expression, start=end - seconds, end=end, step=step)

    def metadata(self) -> dict[str, Any]:
        """Type and help of each metric, as it has understood them."""
        found: dict[str, Any] = self._data("metadata", {})
        return found

    def _ask(self, what: str, **parameters: Any) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self._data(what, parameters)["result"]
        return result

    def _data(self, what: str, parameters: Mapping[str, Any]) -> Any:
        answer = self._session.get(f"{self.endpoint}/api/v1/{what}", params=dict(parameters), timeout=30)
        body = answer.json()
        assert body["status"] == "success", body
        return body["data"]
