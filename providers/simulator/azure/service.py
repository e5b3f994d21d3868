"""Azure's metadata service, as in its documentation: Scheduled Events, and the machine's name.

The official mock server lacks several things that are here: `Preempt`, the two minutes of the first call, the limit of five
requests a second, events of other machines, and the refusal of incomplete requests.
"""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, Literal
from urllib.parse import parse_qsl

from ...clock import Clock
from ...errors import UsageError
from ..base import Simulator
from ..faults import COMMON, Spoil, status
from ..http_server import HttpRequest, Reply
from .document import EventList, Scheduled

EVENTS = "/metadata/scheduledevents"
_INSTANCE = "/metadata/instance"

#: Event types, each with its least documented warning in seconds. For `Terminate` it is the least that a user can choose.
WINDOWS = {"Preempt": 30.0, "Terminate": 300.0, "Reboot": 900.0, "Redeploy": 600.0, "Freeze": 900.0}

OF = ("us", "other", "all")

#: Versions that know `Preempt`, and the newest of the others.
_EVENT_VERSIONS = ("2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", "2020-07-01")
_NEWEST = ("2025-04-07", "2024-07-17", "2024-03-15")

_DATE = re.compile(r"20\d\d-\d\d-\d\d")
_GUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")

_HEADERS = {"Content-Type": "application/json; charset=utf-8", "Server": "IMDS/150.870.65.1854"}

FAULTS: dict[str, Spoil] = {**COMMON, "410": status(410)}


class AzureSimulator(Simulator):
    """A spot machine's metadata service on loopback, in a scale set with others.

    Args:
        clock: dates and starts events, and times the limit of requests; with a manual clock everything stands still.
        host: 127.0.0.1 or ::1.
        port: 0 picks a free port.
        vm_name: this machine's name.
        others: number of other machines in its set.
        enabling: seconds until the first request for events is answered; the real service takes up to 120.
        limit: requests a second from all clients; None for no limit.
        dates: the format of dates: "rfc1123" as Azure's, "iso" as its mock server's.
        new_ids: whether an event gets a new id when it starts, as in Azure's mock server.
        capitals: whether events have machine names in capital letters.
        tell: takes one line for each event.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        vm_name: str = "pool-vmss_12",
        others: int = 3,
        enabling: float = 3.0,
        limit: int | None = 5,
        dates: Literal["rfc1123", "iso"] = "rfc1123",
        new_ids: bool = False,
        capitals: bool = False,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(FAULTS, clock, host=host, port=port, tell=tell)
        self.vm_name = vm_name
        self._others = tuple(f"pool-vmss_{number}" for number in range(100, 100 + others))
        self._enabling = enabling
        self._enabled_at: float | None = None
        self._limit = limit
        self._capitals = capitals
        self._lock = threading.RLock()
        self._list = EventList(self.clock, dates, new_ids, tell)
        self._asked: deque[float] = deque()
        self._unread_since: float | None = None
        self._skew = 0.0

    # --- events of the machine ------------------------------------------------------------------------------

    def preempt(self, window: float = 30.0, *, skew: float = 0.0, of: str = "us") -> float:
        """Evict machines, and return the true deadline in monotonic seconds.

        Args:
            window: seconds until the end.
            skew: seconds by which Azure's clock is ahead of ours, from now on.
            of: the machines that end: "us", "other" or "all".

        Raises:
            UsageError: `of` is unknown.
        """
        self.schedule("Preempt", window, skew=skew, of=of)
        return self.clock.monotonic() + window

    def schedule(self, kind: str, window: float | None = None, *, skew: float = 0.0, of: str = "us") -> str:
        """Schedule an event of any type, known or not, and return its id.

        Args:
            kind: the type, one of `WINDOWS` or any other word.
            window: seconds until its start; None for the least documented warning.
            skew: as for `preempt`.
            of: as for `preempt`.

        Raises:
            UsageError: `of` is unknown.
        """
        with self._lock:
            left = WINDOWS.get(kind, 30.0) if window is None else window
            event = self._list.add(kind, left, self._resources(of), skew)
            self._skew = skew
            self._unread_since = self.clock.monotonic()
            if of != "other" and kind != "Freeze":
                self.deadline = min(self.deadline or event.begins_at, event.begins_at)
        self._tell(f"notice: {kind} of {', '.join(event.resources)}, {left:g} s from now")
        return event.id

    def fail(self) -> None:
        """Let the host fail: a `Reboot` that has already started when a client first sees it."""
        with self._lock:
            self.schedule("Reboot", 0.0)
            self._list.tick()

    def begin(self) -> None:
        """Start every scheduled event now."""
        with self._lock:
            for event in self._list.events:
                self._start(event)

    def cancel(self) -> None:
        """Cancel every event that has not started."""
        self._remove(lambda event: not event.started, "called off")
        with self._lock:
            if not any(self._is_ours(event) for event in self._list.events):
                self.deadline = None

    def finish(self) -> None:
        """End every event that has started."""
        self._remove(lambda event: event.started, "over")

    def clear(self) -> None:
        """Take back events and faults."""
        with self._lock:
            for event in tuple(self._list.events):
                self._list.remove(event)
        super().clear()

    def _remove(self, which: Callable[[Scheduled], bool], how: str) -> None:
        with self._lock:
            self._list.tick()
            for event in [event for event in self._list.events if which(event)]:
                self._list.remove(event)
                self._tell(f"{event.type} of {', '.join(event.resources)} is {how}")

    def _start(self, event: Scheduled) -> None:
        self._list.start(event)
        if self.deadline is not None and self._is_ours(event):
            self.deadline = min(self.deadline, self.clock.monotonic())

    def _is_ours(self, event: Scheduled) -> bool:
        return self.vm_name.upper() in (name.upper() for name in event.resources)

    def _resources(self, of: str) -> tuple[str, ...]:
        if of not in OF:
            raise UsageError(f"of {of!r}: expected one of {', '.join(OF)}")
        names = {"us": (self.vm_name,), "other": self._others[:1], "all": (*self._others, self.vm_name)}[of]
        return tuple(name.upper() if self._capitals else name for name in names)

    # --- answers --------------------------------------------------------------------------------------------

    def _truth(self, request: HttpRequest) -> Reply:
        if not self._takes_one_more():
            return _error(429, "Too many requests")
        if request.headers.get("metadata", "").lower() != "true":
            return _error(400, "Bad request. Required metadata header not specified")
        if "x-forwarded-for" in request.headers:
            return _error(400, "Bad request. X-Forwarded-For header is not allowed")
        path, _, text = request.path.partition("?")
        pairs = parse_qsl(text, keep_blank_values=True)
        query = dict(pairs)
        if len(query) != len(pairs):
            return _error(400, "Bad request. Duplicate query parameter")
        known = _EVENT_VERSIONS.__contains__ if path == EVENTS else _DATE.fullmatch
        if not known(query.get("api-version", "")):
            words = "Bad request. api-version is invalid or was not specified in the request."
            return _error(400, words, {"newest-versions": list(_NEWEST)})
        if path == EVENTS and request.method in ("GET", "POST"):
            return self._events() if request.method == "GET" else self._approve(request.body)
        if request.method != "GET":
            return _error(405, "Method not allowed")
        return self._instance(path, query.get("format", "json"))

    def _takes_one_more(self) -> bool:
        with self._lock:
            now = self.clock.monotonic()
            while self._asked and now - self._asked[0] >= 1.0:
                self._asked.popleft()
            if self._limit is not None and len(self._asked) >= self._limit:
                return False
            self._asked.append(now)
            return True

    def _events(self) -> Reply:
        with self._lock:
            now = self.clock.monotonic()
            if self._enabled_at is None:
                self._enabled_at = now + self._enabling
            left = max(0.0, self._enabled_at - now)
            self._list.tick()
            body = self._list.body()
            since = self._unread_since
            self._unread_since = None
            date = formatdate(self.clock.time() + left + self._skew, usegmt=True)
        if since is not None:
            self._tell(f"the notice is read for the first time, {now - since:.1f} s later")
        return Reply(200, body, {**_HEADERS, "Date": date}, delay=left)

    def _approve(self, body: bytes) -> Reply:
        """Start the events that the client approves. Any well-formed id is accepted, as by Azure."""
        try:
            ids = [request["EventId"] for request in json.loads(body)["StartRequests"]]
        except (ValueError, KeyError, TypeError):
            return _error(400, "Bad request. The payload is malformed")
        if not all(isinstance(one, str) and _GUID.fullmatch(one) for one in ids):
            return _error(400, "Bad request. The payload is malformed")
        with self._lock:
            self._list.tick()
            for event in self._list.events:
                if event.id.upper() in (one.upper() for one in ids) and not event.started:
                    self._tell(f"{event.type} of {', '.join(event.resources)} was approved")
                    self._start(event)
        return Reply(200, b"", _HEADERS)

    def _instance(self, path: str, form: str) -> Reply:
        compute = {
            "location": "westeurope",
            "name": self.vm_name,
            "priority": "Spot",
            "evictionPolicy": "Delete",
            "vmScaleSetName": "pool-vmss",
            "vmSize": "Standard_NC24ads_A100_v4",
        }
        if path in (_INSTANCE, f"{_INSTANCE}/compute") and form == "json":
            return Reply(
                200, json.dumps({"compute": compute} if path == _INSTANCE else compute).encode(), _HEADERS
            )
        key = path.removeprefix(f"{_INSTANCE}/compute/")
        if key not in compute:
            return _error(404, "Not found")
        if form != "text":
            return _error(400, "Bad request. A leaf is text: format=text")
        return Reply(200, compute[key].encode(), {**_HEADERS, "Content-Type": "text/plain; charset=utf-8"})


def _error(code: int, words: str, more: dict[str, Any] | None = None) -> Reply:
    return Reply(code, json.dumps({"error": words, **(more or {})}).encode(), _HEADERS)
