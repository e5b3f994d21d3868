"""A client as plain as a person with curl: what the simulator is checked with."""

from __future__ import annotations

import requests

from spotguard.providers.simulator.aws.service import AwsSimulator

TTL = "X-aws-ec2-metadata-token-ttl-seconds"
NOTICE = "/latest/meta-data/spot/instance-action"


class Client:
    """What a person does with curl."""

    def __init__(self, simulator: AwsSimulator) -> None:
        self.session = requests.Session()
        self.session.trust_env = False
        self.base = simulator.endpoint

    def ask(self, method: str, path: str, **headers: str) -> requests.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.session.request(
            method, self.base + path, headers=named, timeout=100, allow_redirects=False
        )

    def token(self, ttl: object = 21600) -> str:
        answer = self.ask("PUT", "/latest/api/token", **{TTL: str(ttl)})
        assert answer.status_code == 200
        return answer.text

    def get(self, path: str, token: str | None = None) -> requests.Response:
        return self.ask("GET", path, **{"X-aws-ec2-metadata-token": token or self.token()})
