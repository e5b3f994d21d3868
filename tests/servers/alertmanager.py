"""Alertmanager on loopback, with one receiver: what it got, and what it would send on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import requests

from tests.servers.program import Server


class Alertmanager(Server):
    """The server.

    Args:
        program: Debian's program.
        receiver: the URL that it sends each group to.
    """

    def __init__(self, program: str, receiver: str) -> None:
        super().__init__("alertmanager")
        self._program = program
        self._receiver = receiver

    def commands(self) -> Sequence[Sequence[str]]:
        self.endpoint = f"http://127.0.0.1:{self.port()}"
        config = {
            "route": {"receiver": "test", "group_wait": "0s", "group_interval": "1s", "group_by": ["..."]},
            "receivers": [
                {"name": "test", "webhook_configs": [{"url": self._receiver, "send_resolved": True}]}
            ],
        }
        (self.folder / "alertmanager.yml").write_text(json.dumps(config))  # which is YAML, too
        address = self.endpoint.removeprefix("http://")
        return [
            [
                self._program,
                "--config.file=alertmanager.yml",
                "--storage.path=data",
                f"--web.listen-address={address}",
                "--cluster.listen-address=",
                "--log.level=warn",
            ]
        ]

    def answers(self) -> bool:
        return self._get("/-/ready").ok

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts that fire."""
        found: list[dict[str, Any]] = self._get("/api/v2/alerts").json()
        return found

    def _get(self, path: str) -> requests.Response:
        return self._session().get(f"{self.endpoint}{path}", timeout=30)

    @staticmethod
    def _session() -> requests.Session:
        session = requests.Session()
        session.trust_env = False  # no proxy stands between us and loopback
        return session
