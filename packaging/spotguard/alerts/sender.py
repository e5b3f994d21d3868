"""The sender of one receiver's incidents: a thread with a bounded queue, which tries again, and which nothing waits for."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.utils import get_environ_proxies

from ..providers.clock import Clock
from .incidents import Incident, Labels
from .receivers import Origin, Receiver

log = logging.getLogger("spotguard.agent")

#: Seconds to connect, and without a byte of the answer.
_PATIENCE = (5.0, 10.0)
#: Seconds of the first wait after a failure, and of the longest; each is twice the one before.
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0
#: Seconds for which one message is tried.
_TRIED_FOR = 300.0
#: Incidents that wait; the oldest of the least severity go first.
_WAITING = 200
#: Seconds between two messages to people, and the most incidents of one kind and run in an hour. More wait, and the newest counts.
_APART, _AN_HOUR, _HOUR = 10.0, 20, 3600.0
#: Statuses after which the same message may be taken later.
_LATER = frozenset({408, 425, 429, *range(500, 600)})


class IncidentSender:
    """The sender. The process's thread calls `offer` and `close`.

    Args:
        receiver: the receiver.
        origin: where the incidents come from.
        clock: the clock.
        session: sends; for tests.
    """

    def __init__(
        self,
        receiver: Receiver,
        origin: Origin,
        clock: Clock,
        session: requests.Session | None = None,
    ) -> None:
        self.receiver = receiver
        self._origin = origin
        self._clock = clock
        self._session = session or _session_for(receiver.url)
        self._lock = threading.Lock()
        self._news, self._closing, self._never = threading.Event(), threading.Event(), threading.Event()
        #: By name and labels: the newest state, and before an end that begin which has not been sent.
        self._waiting: dict[tuple[str, Labels], list[Incident]] = {}
        self._close_by: float | None = None
        self._sent_at = -_HOUR
        #: By name and run: when incidents for people were taken in the last hour; and those over their limit.
        self._taken: dict[tuple[str, str], deque[float]] = {}
        self._limited: set[tuple[str, str]] = set()
        self._failing = False
        #: Messages by result: "sent" or "failed"; and incidents: "dropped".
        self.counts: Counter[str] = Counter(sent=0, failed=0, dropped=0)
        self._thread = threading.Thread(target=self._run, name="spotguard-alerts", daemon=True)
        self._thread.start()

    def offer(self, incidents: Sequence[Incident]) -> None:
        """Send these incidents soon. Never blocks."""
        with self._lock:
            for incident in incidents:
                key = (incident.name, incident.labels)
                before = self._waiting.pop(key, [])
                begins = [] if incident.ended is None else [each for each in before if each.ended is None]
                self._waiting[key] = [*begins, incident]
            while sum(map(len, self._waiting.values())) > _WAITING:
                least = min(self._waiting, key=lambda key: _is_critical(self._waiting[key][-1]))
                self.counts["dropped"] += len(self._waiting.pop(least))
        self._news.set()

    def close(self, until: float) -> None:
        """Send what waits, until then at most (monotonic seconds), and end."""
        self._close_by = until
        self._closing.set()
        self._news.set()
        self._thread.join(max(0.0, until - self._clock.monotonic()))
        if self._thread.is_alive():  # the receiver keeps its answer back
            log.warning(
                "%s has not answered in time: the last incidents may be lost [SG114]", self.receiver.name
            )

    # --- the thread ---

    def _run(self) -> None:
        patience = _HOUR
        while True:
            self._clock.wait(self._news, patience)
            self._news.clear()
            try:
                self._space_out()
                if batch := self._take():
                    self._send(batch)
            except Exception:  # a mistake costs one message, and not all that follow
                log.exception("an error in the message to %s [SG114]", self.receiver.name)
            with self._lock:
                if self._close_by is not None and not self._waiting and not self._news.is_set():
                    return
                # What is over its limit waits for its turn.
                patience = _APART if self._waiting else _HOUR

    def _take(self) -> list[Incident]:
        """Take what may go now, the most severe first."""
        now = self._clock.monotonic()
        with self._lock:
            keys = list(self._waiting)
            if self.receiver.for_people and self._close_by is None:
                keys = [key for key in keys if self._may_go(self._waiting[key][-1], now)]
            batch = [each for key in keys for each in self._waiting.pop(key)]
        return sorted(batch, key=_is_critical, reverse=True)

    def _may_go(self, incident: Incident, now: float) -> bool:
        """Return whether people have had few enough incidents of this kind and run in the last hour, and count this one."""
        key = (incident.name, incident.run_id)
        taken = self._taken.setdefault(key, deque())
        while taken and taken[0] <= now - _HOUR:
            taken.popleft()
        if len(taken) < _AN_HOUR:
            taken.append(now)
            self._limited.discard(key)
            return True
        if key not in self._limited:
            self._limited.add(key)
            log.warning(
                "%s: %d incidents %s in an hour are the most; the next ones wait [SG114]",
                self.receiver.name,
                _AN_HOUR,
                incident.name,
            )
        return False

    def _space_out(self) -> None:
        """Wait until the next message to people may go. Incidents that come meanwhile go with it."""
        if self.receiver.for_people:
            self._clock.wait(self._closing, self._sent_at + _APART - self._clock.monotonic())

    def _send(self, batch: Sequence[Incident]) -> None:
        until, wait = self._clock.monotonic() + _TRIED_FOR, _FIRST_WAIT
        while True:
            why, later = self._post(self._body(batch))
            now = self._clock.monotonic()
            if not why:
                break
            if not self._failing:
                self._failing = True
                log.warning("incidents cannot be sent to %s: %s [SG114]", self.receiver.name, why)
            last = until if self._close_by is None else min(until, self._close_by)
            if later is None or now + (delay := max(wait, later)) >= last:
                self.counts["failed"] += 1
                return
            if self._closing.is_set():
                self._clock.wait(self._never, min(delay, _FIRST_WAIT))
            else:
                self._clock.wait(self._closing, delay)
            wait = min(2 * wait, _LONGEST_WAIT)
        if self._failing:
            self._failing = False
            log.info("incidents are sent to %s again", self.receiver.name)
        self.counts["sent"] += 1
        self._sent_at = now

    def _body(self, batch: Sequence[Incident]) -> Any:
        """Return the message of this moment: while it is tried, time goes by, and NTP may set the wall clock."""
        now = self._clock.monotonic()
        offset = self._clock.time() - now
        return self.receiver.body(batch, self._origin, now, lambda at: at + offset)

    def _post(self, body: Any) -> tuple[str, float | None]:
        """Return why the receiver has not taken the message ("" if it has), and after how many seconds it may (None: never)."""
        try:
            # A redirect would turn the POST into a GET, and give a secret to another server.
            with self._session.post(
                self.receiver.url, json=body, timeout=_PATIENCE, allow_redirects=False, stream=True
            ) as answer:
                status = answer.status_code
                given = answer.headers.get("Retry-After", "")
        except (OSError, ValueError) as error:  # a host that is no name is a ValueError
            return _reason(error), 0.0  # the error's own text has the URL
        if 200 <= status < 300:
            return "", None
        later = min(float(given), _LONGEST_WAIT) if given.isdecimal() else 0.0
        return f"it answered {status}", later if status in _LATER else None


def _is_critical(incident: Incident) -> bool:
    return incident.severity == "critical"


def _session_for(url: str) -> requests.Session:
    """Return a session that takes proxies and certificates from the environment, and no passwords from a .netrc."""
    session = requests.Session()
    session.trust_env = False
    session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True
    if not _is_loopback(urlsplit(url).hostname or ""):
        session.proxies.update(get_environ_proxies(url))
    return session


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _reason(error: Exception) -> str:
    if isinstance(error, requests.Timeout):
        return "it did not answer in time"
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate is not trusted"
    if isinstance(error, requests.ConnectionError):
        return "it cannot be reached"
    if type(error) is OSError:  # from requests itself, before it connects
        return "REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE names no file of certificates"
    return type(error).__name__
