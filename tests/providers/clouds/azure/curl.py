"""A client as plain as a person with curl, for a machine of Azure."""

from __future__ import annotations

from typing import Any

import requests

from spotguard.providers.simulator.azure.service import AzureSimulator

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
METADATA = {"Metadata": "true"}


def ask(
    simulator: AzureSimulator, method: str, path: str, headers: dict[str, str] | None = None, body: str = ""
) -> requests.Response:
    """One request, with the header that the service wants unless others are given."""
    with requests.Session() as session:
        session.trust_env = False
        named = METADATA if headers is None else headers
        url = simulator.endpoint + path
        return session.request(method, url, data=body, headers=named, timeout=100, allow_redirects=False)


def events(simulator: AzureSimulator) -> list[dict[str, Any]]:
    """What stands in the document."""
    answer = ask(simulator, "GET", EVENTS)
    assert answer.status_code == 200
    found: list[dict[str, Any]] = answer.json()["Events"]
    return found


def approve(simulator: AzureSimulator, event_id: str) -> int:
    """The status of a POST that lets an event begin."""
    return ask(
        simulator, "POST", EVENTS, body=f'{{"StartRequests": [{{"EventId": "{event_id}"}}]}}'
    ).status_code
