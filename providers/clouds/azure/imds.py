"""Azure's metadata service: a header in each request, five requests a second at most, and a first call of two minutes.

Written from the pages "Azure Instance Metadata Service" and "Scheduled Events for Linux VMs". The limit counts the requests
of all programs on the machine, and Azure's own agents need some of them. So spotguard sends three a second, and four
at most. It counts every request before sending it, a second try included.
"""

from __future__ import annotations

import json
import re
import threading
from collections import deque

from ...clock import Clock
from ...health import Health, blind, wrong_server
from ..http import Failure, MetadataAnswer, MetadataClient, coded, no_answer, parse_endpoint, server_named

ENDPOINT = "http://169.254.169.254"

#: The version with `Preempt`, descriptions, sources and durations. Later features have versions of their own (rebalance
#: recommendations).
EVENTS_PATH = "/metadata/scheduledevents?api-version=2020-07-01"
NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"

#: Seconds. The service answers in milliseconds, and is said to need 10 s at worst. Other tools missed events with 1 s
#: (aks-node-termination-handler#73).
TIMEOUT = 5.0
#: Seconds for the call that switches the events on, which takes "up to two minutes".
FIRST_TIMEOUT = 130.0

#: Seconds for the machine's name: short, because notices wait for it.
_NAME_TIMEOUT = 2.0

#: Requests that may be sent within a second: a poll may be the fourth. Any other request (a second try, the name) may be at
#: most the third, because it can wait.
_MOST, _MOST_BESIDE = 4, 3

#: Bytes. Every machine of a scale set gets the events of all: some 400 bytes for each of up to 1000 machines.
_MAX_BODY = 1024 * 1024

#: A name is one word. A page or an error message is not a name; believing one would assign every notice to another machine.
_NAME = re.compile(r"[^\s<>{}\"]{1,128}")

_HEADERS = {"Metadata": "true"}

_UNREACHABLE = "is this an Azure VM? `--provider none` watches without a cloud"
_TIMEOUT = (
    "look for a firewall rule that keeps this user from the metadata service (iptables -L OUTPUT); it answers the "
    "primary network interface only; in Kubernetes: hostNetwork: true"
)
_WRONG_SERVER = "check --metadata-endpoint, and what answers at this address"
_REFUSED = "a proxy in between may drop the header or add its own: let requests to 169.254.169.254 pass it by"
_FORBIDDEN = (
    "the machine's own rules for the metadata service keep this user out: allow /metadata/scheduledevents"
)
_MISSING = "every VM has this key: a metadata proxy that hides it hides the notice too; let it through"
_THROTTLED = (
    "another program on this machine asks too often: Azure allows five requests a second for all of them; of several "
    "guarded runs, one service agent asks once (spotguard agent)"
)
_AGAIN = "nothing to do: asked again until it answers"


def resolve_endpoint(explicit: str | None) -> str:
    """Return the base URL: the user's option, else Azure's address. Azure's SDKs have no variable for it.

    Raises:
        UsageError: the option is invalid.
    """
    return parse_endpoint(explicit, "--metadata-endpoint") if explicit else ENDPOINT


class RequestRate:
    """The requests sent within the last second. For several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sent: deque[float] = deque()
        self._lock = threading.Lock()

    def take(self, most: int) -> bool:
        """Count one more request if that makes at most `most` within a second; return False if it must not be sent."""
        with self._lock:
            now = self._clock.monotonic()
            while self._sent and now - self._sent[0] >= 1.0:
                self._sent.popleft()
            if len(self._sent) >= most:
                return False
            self._sent.append(now)
            return True


class AzureImds:
    """Counted requests to the service. For one thread, except `enable`, which has a thread of its own.

    Each request returns None if it was not sent, because too many were sent within this second.
    """

    def __init__(self, endpoint: str, clock: Clock, *, timeout: float = TIMEOUT) -> None:
        self.endpoint = endpoint
        self._timeout = timeout
        self._pace = RequestRate(clock)
        self._client = self._new_client(timeout)
        self._events = self._client.prepare("GET", EVENTS_PATH, _HEADERS)
        self._name = self._client.prepare("GET", NAME_PATH, _HEADERS)

    def events(self, timeout: float | None = None) -> MetadataAnswer | Failure | None:
        """Return the answer with the document of events."""
        if not self._pace.take(_MOST):
            return None
        answer = self._client.send(self._events, timeout=timeout, again=False)
        # The server may close a kept connection while this client writes to it; a second try saves a blind second.
        if isinstance(answer, Failure) and answer.dropped and self._pace.take(_MOST_BESIDE):
            answer = self._client.send(self._events, timeout=timeout, again=False)
        return answer

    def enable(self, timeout: float) -> MetadataAnswer | Failure | None:
        """Return the answer with the document of events, by a call that may take `timeout` seconds.

        It uses a connection of its own, and runs on a thread of its own.
        """
        if not self._pace.take(_MOST_BESIDE):
            return None
        client = self._new_client(timeout)
        try:
            return client.send(client.prepare("GET", EVENTS_PATH, _HEADERS), again=False)
        finally:
            client.close()

    def name(self) -> str | Health | None:
        """Return this machine's name as the events use it, or the reason why it is not known."""
        if not self._pace.take(_MOST_BESIDE):
            return None
        answer = self._client.send(self._name, timeout=_NAME_TIMEOUT, again=False)
        if isinstance(answer, MetadataAnswer) and answer.status == 200:
            name = answer.body.decode("utf-8", "replace").strip()
            if _NAME.fullmatch(name):
                return name
        return self._judge("GET", NAME_PATH, answer)

    def acknowledge(self, event_id: str) -> MetadataAnswer | Failure | None:
        """Allow Azure to begin with this event now."""
        if not self._pace.take(_MOST_BESIDE):
            return None
        body = json.dumps({"StartRequests": [{"EventId": event_id}]}).encode()
        headers = {**_HEADERS, "Content-Type": "application/json"}
        return self._client.send(self._client.prepare("POST", EVENTS_PATH, headers, body), again=False)

    def judge_events(self, answer: MetadataAnswer | Failure) -> Health:
        """Return the source's health after an answer of `events` whose body was of no use."""
        return self._judge("GET", EVENTS_PATH, answer)

    def judge_start(self, answer: MetadataAnswer | Failure) -> Health:
        """Return the health after an answer of `acknowledge` that was of no use."""
        return self._judge("POST", EVENTS_PATH, answer)

    def _judge(self, method: str, path: str, answer: MetadataAnswer | Failure) -> Health:
        return coded(self._meaning(method, path, answer), answer)

    def _meaning(self, method: str, path: str, answer: MetadataAnswer | Failure) -> Health:
        if isinstance(answer, Failure):
            return no_answer(answer, timeout=_TIMEOUT, unreachable=_UNREACHABLE, stranger=_WRONG_SERVER)
        detail = f"{method} {self.endpoint}{path}: {answer.status}{_signed(answer)}"
        match answer.status:
            case 200:
                return wrong_server(f"{detail}, and what came is not Azure's", _WRONG_SERVER)
            case 400:
                return blind("garbage", f"{detail}{_said(answer)}", _REFUSED)
            case 401 | 403:
                return blind("forbidden", detail, _FORBIDDEN)
            case 404:
                return blind("missing-key", detail, _MISSING)
            case 429:
                return blind("throttled", detail, _THROTTLED)
            case 410:
                return blind("server-error", f"{detail}, which may last for 70 s", _AGAIN)
            case status if status >= 500:
                return blind("server-error", detail, _AGAIN)
        return blind("garbage", detail, _WRONG_SERVER)

    def close(self) -> None:
        self._client.close()

    def _new_client(self, timeout: float) -> MetadataClient:
        return MetadataClient(self.endpoint, timeout=timeout, max_body=_MAX_BODY)


def _said(answer: MetadataAnswer) -> str:
    """Return the service's own error message about a rejected request."""
    try:
        message = json.loads(answer.body).get("error")
    except (ValueError, RecursionError, AttributeError):
        return ""
    return f", {ascii(message)[:100]}" if isinstance(message, str) else ""


def _signed(answer: MetadataAnswer) -> str:
    """Return " from NAME" for a server other than Azure's own, "IMDS/" and a version; else ""."""
    return "" if answer.headers.get("Server", "").startswith("IMDS/") else server_named(answer)
