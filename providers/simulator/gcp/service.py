"""Compute Engine's metadata server, as in its documentation, its users' reports and captures.

Other mocks get four things wrong:

- The server holds a request with `wait_for_change`; without `last_etag` it does so even if the value has already changed.
- After `timeout_sec` the answer is the old value with the old ETag and status 200.
- A refusal has the same signing headers as an answer.
- The answer for a key that does not exist is an HTML page.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import parse_qsl

from ...clock import Clock
from ...errors import UsageError
from ..base import Simulator
from ..http_server import HttpRequest, Reply
from ..power import Power
from .faults import FAULTS, HEADERS, page, waits
from .tree import JSON, ROOT, TEXT, GcpTree
from .upcoming import NOTHING, SPELLINGS, planned

EVENTS = {
    "none": "NONE",
    "migrate": "MIGRATE_ON_HOST_MAINTENANCE",
    "terminate": "TERMINATE_ON_HOST_MAINTENANCE",
}

_PREEMPTED = "instance/preempted"
_EVENT = "instance/maintenance-event"
_UPCOMING = "instance/upcoming-maintenance"
_SHUTDOWN = "instance/shutdown-details"

#: Seconds from the power button to the end of a spot VM.
_SHUTDOWN_PERIOD = 30.0

#: Timeout of a request without `timeout_sec`, in seconds. It is finite because the system limits the length of a wait.
_FOR_EVER = 10.0 * 365 * 24 * 3600


class GcpSimulator(Simulator):
    """A VM's metadata server on loopback. A context manager that listens from its start to its end.

    Args:
        clock: dates the events and ends held requests; with a manual clock both stand still.
        host: 127.0.0.1 or ::1.
        port: 0 picks a free port.
        gke: be GKE's own server, which pods see. It has no keys for preemption and maintenance.
        tell: takes one line for each event.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        gke: bool = False,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(FAULTS, clock, host=host, port=port, tell=tell)
        self._headers = HEADERS | ({"Server": "GKE Metadata Server"} if gke else {})
        self._change = threading.Condition()
        self._tree = GcpTree(gke=gke)
        #: Set, and replaced by a new event, at each change that a held request may wait for.
        self._changed = threading.Event()
        self._held = 0
        self._ended = False
        self._power: Power | None = None
        self._unread_since: float | None = None
        self._plan_nothing("error-503")

    # --- life ---------------------------------------------------------------------------------------------

    def start(self) -> str:
        self._ended = False
        return super().start()

    def stop(self) -> None:
        self._ended = True
        self._wake()
        self._cut_off()
        super().stop()

    # --- events of the VM -----------------------------------------------------------------------------------

    def preempt(self, window: float | None = None, *, notice: float = 0.0, pid: int | None = None) -> float:
        """Preempt the VM, and return its true deadline in monotonic seconds.

        Args:
            window: seconds until the end; None for 30 s after the power button.
            notice: seconds until ACPI's power button is pressed: 120 on a VM made with a notice duration.
            pid: a process that gets SIGTERM with the button. At the end it and its descendants get SIGKILL.

        Raises:
            UsageError: the process cannot be signalled.
        """
        left = notice + _SHUTDOWN_PERIOD if window is None else window
        self._cut_off()
        power = None if pid is None else Power(pid, self.clock, self._tell)
        self._unread_since = self.clock.monotonic()
        self.deadline = self.clock.monotonic() + left
        self._tell(f"notice: preempted, power button in {notice:g} s, gone in {left:g} s")
        self.put(_PREEMPTED, b"TRUE")
        if power is not None:
            self._power = power
            power.press(notice, left)
        return self.deadline

    def maintain(self, event: str = "terminate") -> None:
        """Announce a host event: "migrate" (60 s before), "terminate" (60 min before), or "none"."""
        if event not in EVENTS:
            raise UsageError(f"maintenance {event!r}: expected one of {', '.join(EVENTS)}")
        self._tell(f"maintenance-event: {EVENTS[event]}")
        self.put(_EVENT, EVENTS[event].encode())

    def plan(self, ahead: float = 3600.0, *, spelling: str = "snake", status: str = "PENDING") -> None:
        """Plan host maintenance whose window begins in `ahead` seconds, in one of `upcoming.SPELLINGS`."""
        if spelling not in SPELLINGS:
            raise UsageError(f"upcoming maintenance {spelling!r}: expected one of {', '.join(SPELLINGS)}")
        self._tell(f"upcoming maintenance in {ahead:g} s, as {spelling}")
        self.put(_UPCOMING, planned(self.clock.time() + ahead, spelling, status), kind=JSON)

    def plan_nothing(self, spelling: str = "error-503") -> None:
        """Plan no maintenance, and answer so in one of the observed forms, `upcoming.NOTHING`."""
        if spelling not in NOTHING:
            raise UsageError(f"no maintenance {spelling!r}: expected one of {', '.join(NOTHING)}")
        self._plan_nothing(spelling)
        self._tell(f"no upcoming maintenance, as {spelling}")

    def ask_to_stop(self, most: float = 600.0) -> None:
        """Begin a user's stop of a VM with graceful shutdown, which may take `most` seconds."""
        asked = datetime.fromtimestamp(self.clock.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.put(f"{_SHUTDOWN}/max-duration", f"{most:g}s".encode())
        self.put(f"{_SHUTDOWN}/request-timestamp", asked.encode())
        self.put(f"{_SHUTDOWN}/target-state", b"STOPPED")
        self._tell(f"stop-state: PENDING_STOP, for {most:g} s at most")
        self.put(f"{_SHUTDOWN}/stop-state", b"PENDING_STOP")

    def put(self, key: str, body: bytes, *, kind: str = TEXT, status: int = 200) -> None:
        """Set a key below `computeMetadata/v1/` to any bytes, right or wrong."""
        with self._change:
            self._tree.put(key, body, kind, status)
        self._wake()

    def remove(self, key: str) -> None:
        with self._change:
            self._tree.remove(key)
        self._wake()

    def clear(self) -> None:
        """Take back preemption, maintenance, stop and faults."""
        self._cut_off()
        for name in ("max-duration", "request-timestamp", "target-state"):
            self.remove(f"{_SHUTDOWN}/{name}")
        if self._tree.read(f"{_SHUTDOWN}/stop-state", {}) is not None:  # the VM has graceful shutdown
            self.put(f"{_SHUTDOWN}/stop-state", b"UNSPECIFIED")
        self.put(_EVENT, b"NONE")
        self._plan_nothing("error-503")
        self.put(_PREEMPTED, b"FALSE")
        super().clear()
        self._wake()

    def fault(
        self, kind: str, *, seconds: float | None = None, count: int | None = None, path: str = ""
    ) -> None:
        super().fault(kind, seconds=seconds, count=count, path=path)
        self._wake()  # the fault applies to held requests too

    def wait_for_held(self, count: int = 1, timeout: float = 5.0) -> bool:
        """Block until `count` requests are held. Return False after `timeout` real seconds without them."""
        with self._change:
            return self._change.wait_for(lambda: self._held >= count, timeout)

    def _plan_nothing(self, spelling: str) -> None:
        leaf = NOTHING[spelling]
        if leaf is None:
            self.remove(_UPCOMING)
        else:
            self.put(_UPCOMING, leaf.body, kind=leaf.kind, status=leaf.status)

    def _cut_off(self) -> None:
        if self._power is not None:
            self._power.close()
            self._power = None

    # --- answers --------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        with self._change:
            self._changed.set()
            self._changed = threading.Event()

    def _answer(self, request: HttpRequest) -> Reply:
        """Answer at once, or hold a request that waits for a change.

        A held request ends with a change, with its `timeout_sec`, with a fault that applies to it, or with the server.
        """
        query = _query(request)
        seconds = query.get("timeout_sec", "")
        end = self.clock.monotonic() + (float(seconds) if seconds.isdecimal() else _FOR_EVER)
        known = query.get("last_etag")
        while True:
            with self._change:
                changed = self._changed  # taken before the value is read: any later change sets this event
            truth = self._truth(request)
            reply = self._faults.spoil(request, truth, self.clock.monotonic())
            etag = truth.headers.get("ETag")
            known = etag if known is None else known
            if not waits(request) or reply is not truth or etag is None or etag != known or self._ended:
                return reply
            left = end - self.clock.monotonic()
            if left <= 0:
                return reply
            self._hold(changed, left)

    def _hold(self, changed: threading.Event, seconds: float) -> None:
        with self._change:
            self._held += 1
            self._change.notify_all()
        self.clock.wait(changed, seconds)
        with self._change:
            self._held -= 1

    def _truth(self, request: HttpRequest) -> Reply:
        path, query = request.path.partition("?")[0], _query(request)
        headers = {"Content-Type": TEXT, **self._headers}
        if request.method not in ("GET", "HEAD"):
            return page(405)
        if "x-forwarded-for" in request.headers:
            return page(
                403, f"Your client does not have permission to get URL <code>{path}</code> from this server."
            )
        if path == "/":  # libraries use it to detect the cloud
            return Reply(200, b"computeMetadata/\n", headers)
        if request.headers.get("metadata-flavor") != "Google":
            return page(403, "Missing Metadata-Flavor:Google header.")
        if path == "/computeMetadata/":
            return Reply(200, b"v1/\n", headers)
        return self._read(path, query, headers)

    def _read(self, path: str, query: dict[str, str], headers: dict[str, str]) -> Reply:
        if not query.get("timeout_sec", "0").isdecimal():
            return page(400, "timeout_sec is no number.")
        with self._change:
            key = path.removeprefix(ROOT)
            leaf = self._tree.read(key, query) if path.startswith(ROOT) else None
            folder = path.startswith(ROOT) and self._tree.is_folder(key)
        if leaf is None and folder:
            return Reply(
                301, f"{path}/\n".encode(), {**headers, "Content-Type": "text/html", "Location": f"{path}/"}
            )
        if leaf is None:
            return page(
                404, f"The requested URL <code>{path}</code> was not found on this server.", self._headers
            )
        if key == _PREEMPTED and leaf.body == b"TRUE":
            self._tell_first_read()
        signed = {**headers, "Content-Type": leaf.kind}
        return Reply(leaf.status, leaf.body, {**signed, "ETag": leaf.etag} if leaf.status == 200 else signed)

    def _tell_first_read(self) -> None:
        with self._change:
            since, self._unread_since = self._unread_since, None
        if since is not None:
            self._tell(f"the notice is read for the first time, {self.clock.monotonic() - since:.1f} s later")


def _query(request: HttpRequest) -> dict[str, str]:
    return dict(parse_qsl(request.path.partition("?")[2], keep_blank_values=True))
