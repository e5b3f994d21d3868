"""The sender of one receiver's alerts: a thread with a bounded queue, which tries again, and which nothing waits for."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import requests

from ..providers.clock import Clock
from .evaluation import Alert
from .receivers import Origin, Receiver

log = logging.getLogger("spotguard.agent")

#: Seconds to connect, and without a byte of the answer.
_PATIENCE = (5.0, 10.0)
#: Seconds of the first wait after a failure, and of the longest; each is twice the one before.
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0
#: Seconds for which one message is tried.
_TRIED_FOR = 300.0
#: Alerts that wait; the oldest ones go first.
_WAITING = 200
#: Seconds between two messages to people, and the most in an hour.
_APART, _AN_HOUR = 10.0, 60
#: Statuses after which the same message may be taken later.
_LATER = frozenset({408, 425, 429, *range(500, 600)})


class AlertSender:
    """The sender. The process's thread calls `offer` and `close`.

    Args:
        receiver: the receiver.
        origin: where the alerts come from.
        clock: the clock.
        session: sends; for tests.
    """

    def __init__(
        self, receiver: Receiver, origin: Origin, clock: Clock, session: requests.Session | None = None
    ) -> None:
        self.receiver = receiver
        self._origin = origin
        self._clock = clock
        self._session = session or requests.Session()
        self._lock = threading.Lock()
        self._news, self._closing, self._never = threading.Event(), threading.Event(), threading.Event()
        self._waiting: deque[Alert] = deque()
        self._close_by: float | None = None
        self._sent_at: deque[float] = deque()
        self._failing = False
        #: Messages by result: "sent" or "failed"; and alerts: "dropped".
        self.counts: Counter[str] = Counter(sent=0, failed=0, dropped=0)
        self._thread = threading.Thread(target=self._run, name="spotguard-alerts", daemon=True)
        self._thread.start()

    def offer(self, alerts: Sequence[Alert]) -> None:
        """Send these alerts soon. Never blocks."""
        with self._lock:
            known = {(each.rule.name, each.labels, each.ended is None) for each in self._waiting}
            for alert in alerts:
                if (alert.rule.name, alert.labels, alert.ended is None) not in known:
                    self._waiting.append(alert)
            while len(self._waiting) > _WAITING:
                self._waiting.popleft()
                self.counts["dropped"] += 1
        self._news.set()

    def close(self, until: float) -> None:
        """Send what waits, until then at most (monotonic seconds), and end."""
        self._close_by = until
        self._closing.set()
        self._news.set()
        self._thread.join(max(0.0, until - self._clock.monotonic()))

    # --- the thread ---

    def _run(self) -> None:
        while True:
            self._clock.wait(self._news, 3600.0)
            self._news.clear()
            self._space_out()
            if batch := self._take():
                self._send(batch)
            with self._lock:
                if self._close_by is not None and not self._waiting:
                    return

    def _take(self) -> list[Alert]:
        with self._lock:
            batch = list(self._waiting)
            self._waiting.clear()
            if batch and self._for_people and len(self._sent_at) >= _AN_HOUR:
                self.counts["dropped"] += len(batch)
                log.warning("%s: %d messages in an hour are the most [SG114]", self.receiver.name, _AN_HOUR)
                return []
        return batch

    @property
    def _for_people(self) -> bool:
        return self.receiver.kind != "alertmanager"

    def _space_out(self) -> None:
        """Wait until the next message to people may go. What comes meanwhile goes with it."""
        now = self._clock.monotonic()
        while self._sent_at and self._sent_at[0] < now - 3600.0:
            self._sent_at.popleft()
        if self._for_people and self._sent_at:
            self._clock.wait(self._closing, self._sent_at[-1] + _APART - now)

    def _send(self, batch: Sequence[Alert]) -> None:
        until, wait = self._clock.monotonic() + _TRIED_FOR, _FIRST_WAIT
        while True:
            why, later = self._post(self._body(batch))
            now = self._clock.monotonic()
            if not why:
                break
            if not self._failing:
                self._failing = True
                log.warning("alerts cannot be sent to %s: %s [SG114]", self.receiver.name, why)
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
            log.info("alerts are sent to %s again", self.receiver.name)
        self.counts["sent"] += 1
        self._sent_at.append(now)

    def _body(self, batch: Sequence[Alert]) -> Any:
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
        except (requests.RequestException, ValueError) as error:  # a host that is no name is a ValueError
            return _reason(error), 0.0  # the error's own text has the URL
        if 200 <= status < 300:
            return "", None
        later = min(float(given), _LONGEST_WAIT) if given.isdigit() else 0.0
        return f"it answered {status}", later if status in _LATER else None


def _reason(error: Exception) -> str:
    if isinstance(error, requests.Timeout):
        return "it did not answer in time"
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate is not trusted"
    if isinstance(error, requests.ConnectionError):
        return "it cannot be reached"
    return type(error).__name__
