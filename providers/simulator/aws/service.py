"""EC2's metadata service, version 2, as in its documentation and in captures.

Other mocks get three things wrong:

- `time` is fixed when the notice appears, not computed anew for each request.
- The key's body is text/plain.
- The directory `spot/` does not exist before a notice.

Captures also show `Connection: close` after each answer (with `Server: EC2ws`), which is the default here.
"""

from __future__ import annotations

import base64
import re
import secrets
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import formatdate

from ...clock import Clock
from ...errors import UsageError
from ..base import Simulator
from ..faults import COMMON, Spoil
from ..http_server import HttpRequest, Reply
from .maintenance import Schedule
from .tree import AwsTree

ACTIONS = ("terminate", "stop", "hibernate")

#: Observed values of `spot/termination-time`: none (404), a value that is not a time, the time of an interruption that
#: failed, and the time of one to come.
TIMES = ("absent", "garbage", "stale", "valid")

#: Target states that an Auto Scaling group may set for its instance.
STATES = (
    "Detached",
    "InService",
    "Standby",
    "Terminated",
    "Warmed:Hibernated",
    "Warmed:Running",
    "Warmed:Stopped",
    "Warmed:Terminated",
)

_NOTICE = "spot/instance-action"
_TERMINATION_TIME = "spot/termination-time"
_REBALANCE = "events/recommendations/rebalance"
_STATE = "autoscaling/target-lifecycle-state"

_TOKEN = "x-aws-ec2-metadata-token"
_TTL = "x-aws-ec2-metadata-token-ttl-seconds"
_MAX_TTL = 21600

_PAGE = """<?xml version="1.0" encoding="iso-8859-1"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Transitional//EN"
\t"http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd">
<html xmlns="http://www.w3.org/1999/xhtml" xml:lang="en" lang="en">
 <head>
  <title>{0}</title>
 </head>
 <body>
  <h1>{0}</h1>
 </body>
</html>
"""
_TITLES = {
    400: "400 - Bad Request",
    401: "401 - Unauthorized",
    403: "403 - Forbidden",
    404: "404 - Not Found",
    405: "405 - Method Not Allowed",
}


def _page(status: int) -> Reply:
    body = _PAGE.format(_TITLES[status]).encode("latin-1")
    return Reply(status, body, {"Content-Type": "text/html", "Server": "EC2ws"})


def _on_reads(status: int) -> Spoil:
    return lambda request, reply: _page(status) if request.method == "GET" else None


def _hop_limit(request: HttpRequest, reply: Reply) -> Reply | None:
    """Drop the answer to the PUT, and let every other answer through."""
    return Reply(200, instead="hang") if request.method == "PUT" else None


FAULTS: dict[str, Spoil] = {
    **COMMON,
    "401": _on_reads(401),
    "403": lambda request, reply: _page(403),
    "hop-limit": _hop_limit,
}


class AwsSimulator(Simulator):
    """An instance's metadata service on loopback. A context manager that listens from its start to its end.

    Args:
        clock: dates the notice and ages the tokens; with a manual clock both stand still.
        host: 127.0.0.1 or ::1.
        port: 0 picks a free port.
        max_ttl: the longest life of a token in seconds, even if the client asks for more.
        v2_required: False answers reads without a token, as on an instance whose tokens are "optional".
        keep_alive: whether a connection serves more than one request, which the real service was never observed to do.
        tell: takes one line for each event.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        max_ttl: float = _MAX_TTL,
        v2_required: bool = True,
        keep_alive: bool = False,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(FAULTS, clock, host=host, port=port, keep_alive=keep_alive, tell=tell)
        self._max_ttl = max_ttl
        self._v2_required = v2_required
        self._lock = threading.Lock()
        self._tokens: dict[str, float] = {}
        self._tree = AwsTree(self.clock)
        self._schedule = Schedule()
        self._unread_since: float | None = None

    # --- events of the instance -----------------------------------------------------------------------------

    def preempt(self, window: float = 120.0, action: str = "terminate", *, skew: float = 0.0) -> float:
        """Issue a notice, and return its true deadline in monotonic seconds.

        Args:
            window: seconds until the end; negative for a late notice. Hibernation ignores it and begins now.
            action: AWS's name of the action, one of `ACTIONS`.
            skew: seconds by which AWS's clock is ahead of ours.

        Raises:
            UsageError: the action is unknown.
        """
        if action not in ACTIONS:
            raise UsageError(f"action {action!r}: expected one of {', '.join(ACTIONS)}")
        left = 0.0 if action == "hibernate" else window
        time = _iso(self.clock.time() + left + skew)
        self.deadline = self.clock.monotonic() + left
        if action == "terminate":
            self.put(_TERMINATION_TIME, time.encode())
        self.put(_NOTICE, f'{{"action":"{action}","time":"{time}"}}'.encode())
        self._tell(f"notice: {action} at {time}, {left:g} s from now")
        return self.deadline

    def rebalance(self) -> None:
        """Recommend to rebalance: the instance is at risk, and no end is named."""
        time = _iso(self.clock.time())
        self.put(_REBALANCE, f'{{"noticeTime":"{time}"}}'.encode())
        self._tell(f"rebalance recommendation at {time}")

    def termination_time(self, value: str, window: float = 120.0) -> None:
        """Set the legacy key to one of `TIMES`, independently of `spot/instance-action`.

        Args:
            value: one of `TIMES`.
            window: seconds until the time that "valid" names.

        Raises:
            UsageError: the value is unknown.
        """
        if value not in TIMES:
            raise UsageError(f"termination-time {value!r}: expected one of {', '.join(TIMES)}")
        if value == "absent":
            self.remove(_TERMINATION_TIME)
        else:
            time = _iso(self.clock.time() + (window if value == "valid" else -3600.0))
            self.put(_TERMINATION_TIME, b"none" if value == "garbage" else time.encode())
        self._tell(f"termination-time: {value}")

    def maintenance(
        self, code: str = "instance-stop", ahead: float = 600.0, *, state: str = "active", skew: float = 0.0
    ) -> str:
        """Schedule an event that does not begin before `ahead` seconds from now, and return its id.

        Args:
            code: one of `CODES`, or any other word.
            ahead: seconds until its start.
            state: "active"; an event in any other state is in the history.
            skew: seconds by which AWS's clock is ahead of ours.
        """
        with self._lock:
            id = self._schedule.add(code, self.clock.time() + ahead + skew, state)
        self._schedule_changed(f"scheduled: {code} in {ahead:g} s")
        return id

    def reschedule(self, id: str, ahead: float) -> None:
        """Move an event to `ahead` seconds from now."""
        with self._lock:
            self._schedule.move(id, self.clock.time() + ahead)
        self._schedule_changed(f"rescheduled: {id} in {ahead:g} s")

    def maintenance_over(self, state: str = "completed", id: str = "") -> None:
        """Complete or cancel an event, or all."""
        with self._lock:
            self._schedule.end(state, id)
        self._schedule_changed(f"scheduled events: {state}")

    def _schedule_changed(self, line: str) -> None:
        with self._lock:
            for key, body in self._schedule.bodies().items():
                self._tree.put(key, body)
        self._tell(line)

    def autoscaling(self, state: str) -> None:
        """Set the state that the group wants of its instance; any word may be passed."""
        self.put(_STATE, state.encode())
        self._tell(f"autoscaling: {state}")

    def put(self, key: str, body: bytes) -> None:
        """Set a key below `/latest/meta-data/` to any bytes, right or wrong."""
        with self._lock:
            self._tree.put(key, body)
            if key == _NOTICE:
                self._unread_since = self.clock.monotonic()

    def remove(self, key: str) -> None:
        with self._lock:
            self._tree.remove(key)

    def clear(self) -> None:
        """Take back notices, recommendation, events, faults, and the group's target state."""
        with self._lock:
            self._schedule.clear()
            for key, body in self._schedule.bodies().items():
                self._tree.put(key, body)
            for key in (_NOTICE, _TERMINATION_TIME, _REBALANCE, _STATE):
                self._tree.remove(key)
        super().clear()

    def expire_tokens(self) -> None:
        """Forget every token before it expires, as the service does now and then."""
        with self._lock:
            self._tokens.clear()
        self._tell("all tokens forgotten")

    # --- answers --------------------------------------------------------------------------------------------

    def _truth(self, request: HttpRequest) -> Reply:
        path = request.path.partition("?")[0]
        if request.method == "PUT":
            return self._issue(request, path)
        if request.method not in ("GET", "HEAD") or path == "/latest/api/token":
            return _page(405)
        held = request.headers.get(_TOKEN)
        headers = {"Content-Type": "text/plain", "Accept-Ranges": "none", "Server": "EC2ws"}
        if held is not None or self._v2_required:
            left = self._life(held or "")
            if left <= 0:
                return _page(401)
            headers[_TTL.title()] = str(int(left))
        return self._read(path, headers)

    def _issue(self, request: HttpRequest, path: str) -> Reply:
        if path != "/latest/api/token":
            return _page(403 if path.endswith("/api/token") else 405)
        if "x-forwarded-for" in request.headers:
            return _page(403)  # a proxy has forwarded the request, perhaps from outside the instance
        asked = request.headers.get(_TTL, "")
        if not re.fullmatch(r"[0-9]{1,5}", asked) or not 1 <= int(asked) <= _MAX_TTL:
            return _page(400)
        ttl = min(float(asked), self._max_ttl)
        token = base64.urlsafe_b64encode(secrets.token_bytes(40)).decode()
        now = self.clock.monotonic()
        with self._lock:
            self._tokens = {token: end for token, end in self._tokens.items() if end > now}
            self._tokens[token] = now + ttl
        headers = {"Content-Type": "text/plain", "Server": "EC2ws", _TTL.title(): str(int(ttl))}
        return Reply(200, token.encode(), headers)

    def _life(self, token: str) -> float:
        with self._lock:
            return self._tokens.get(token, 0.0) - self.clock.monotonic()

    def _read(self, path: str, headers: dict[str, str]) -> Reply:
        with self._lock:
            leaf = self._tree.read(path)
        if leaf is None:
            return _page(404)
        body, since = leaf
        if path.endswith(_NOTICE):
            self._tell_first_read()
        dated = {} if since is None else {"Last-Modified": formatdate(since, usegmt=True)}
        return Reply(200, body, headers | dated)

    def _tell_first_read(self) -> None:
        with self._lock:
            since, self._unread_since = self._unread_since, None
        if since is not None:
            self._tell(f"the notice is read for the first time, {self.clock.monotonic() - since:.1f} s later")


def _iso(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
