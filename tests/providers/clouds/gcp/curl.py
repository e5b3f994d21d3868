"""A client as plain as a person with curl, for a VM's metadata server."""

from __future__ import annotations

import threading
from contextlib import suppress

import requests

from spotguard.providers.simulator.gcp.service import GcpSimulator

ROOT = "/computeMetadata/v1/"
PREEMPTED = f"{ROOT}instance/preempted"
FLAVOR = {"Metadata-Flavor": "Google"}


def get(simulator: GcpSimulator, path: str, **headers: str) -> requests.Response:
    """One GET of a path, with the header that the service wants."""
    return ask(simulator, "GET", path, {**FLAVOR, **headers})


def ask(simulator: GcpSimulator, method: str, path: str, headers: dict[str, str]) -> requests.Response:
    with requests.Session() as session:
        session.trust_env = False
        url = simulator.endpoint + path
        return session.request(method, url, headers=headers, timeout=100, allow_redirects=False)


class Held:
    """A GET on a thread of its own, which may be held."""

    def __init__(self, simulator: GcpSimulator, path: str) -> None:
        self.answer: requests.Response | None = None
        self._thread = threading.Thread(target=self._ask, args=(simulator, path), name="held client")
        self._thread.start()

    def _ask(self, simulator: GcpSimulator, path: str) -> None:
        with suppress(requests.ConnectionError):  # the service was stopped
            self.answer = get(simulator, path)

    def let_go(self) -> None:
        """Wait until it is held no more, whatever came of it."""
        self._thread.join(100)
        assert not self._thread.is_alive(), "it is held still"

    def answered(self) -> requests.Response:
        """Wait for the answer."""
        self.let_go()
        assert self.answer is not None
        return self.answer
