"""GCP's preemption notice: `instance/preempted`, which becomes TRUE when the cloud takes a spot or preemptible VM back.

It stays TRUE, and has no deadline. By default ACPI's soft-off comes at the same time, and the VM is gone 30 s later. A VM
that was created with a preemption notice duration has 120 s before that. No documented key tells the guest which one
applies. `--window` sets it; otherwise the agent counts on 30 s.

Two sources poll the one key, each on a connection of its own. A hanging GET learns of the change immediately. A plain GET
every ten seconds checks it, because a silent connection may be dead or may just have no news.
"""

from __future__ import annotations

import logging
import re
import threading

from ...clock import Clock
from ...health import SEEING, Health, Sight
from ...notice import Notice, NoticeKind, Sighting
from ..http import MetadataAnswer, parse_json
from .long_poll import HELD, RETRY, HangingGet
from .metadata import GcpMetadata
from .source import GcpSource
from .times import parse_duration

log = logging.getLogger("spotguard.providers")

KEY = "instance/preempted"
SOURCE = "gcp instance/preempted"
SCHEDULING = "instance/scheduling/?recursive=true"

#: Seconds from TRUE to the end: Compute Engine's shutdown period for preemption, at most.
WINDOW = 30.0
#: Seconds if a notice duration, which is 0 or 120, precedes that shutdown period.
LONGEST = 150.0


class PreemptedState:
    """The notice that both sources share, with the time at which the first of them saw it.

    Args:
        window: seconds of warning that the user set. The agent handles values below `WINDOW`.
    """

    def __init__(self, clock: Clock, window: float | None = None) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._notice: Notice | None = None
        self._said = window is not None
        self._window = _clamped(window)
        #: Seconds from the notice to the end, as the service announced; None before an announcement.
        self.told: float | None = None

    def promise(self, seconds: float) -> None:
        """Record the notice duration that the service announced.

        The user's value wins over it, because this key is not documented.
        """
        with self._lock:
            self.told = _clamped(seconds)
            if not self._said:
                self._window = self.told

    def seen(self) -> Notice:
        """Return the notice that TRUE means."""
        with self._lock:
            if self._notice is None:
                now = self._clock.monotonic()
                self._notice = Notice(
                    # The value carries nothing more, and the VM does not recover from it within this boot.
                    "gcp/preempted",
                    NoticeKind.PREEMPT,
                    SOURCE,
                    now + self._window,
                    now,
                    detail="preempted: TRUE",
                    window=self._window,
                )
            return self._notice


class PreemptedAtOnce(GcpSource):
    """The source with the hanging GET: it sees TRUE as soon as the value changes."""

    name = SOURCE
    longest = HELD + GcpSource.longest
    withdraws = False

    def __init__(self, metadata: GcpMetadata, clock: Clock, preemption: PreemptedState) -> None:
        super().__init__(metadata, clock)
        self._preemption = preemption
        self._get = HangingGet(metadata, KEY, clock)
        self.interval = self._get.interval

    def _look(self) -> Sighting:
        sighting = _shown(self._get.read(), self._metadata, self._preemption)
        # Good answers set the pace. After useless ones, the poller backs off.
        self.interval = self._get.interval if sighting.health.seeing else RETRY
        if sighting.health.seeing and self._get.trouble:
            return Sighting(Health(Sight.SEEING, detail=self._get.trouble), sighting.notices)
        return sighting


class PreemptedPlainly(GcpSource):
    """The source with the plain GET. It also asks once for the notice duration."""

    name = f"{SOURCE}, plain GET"
    withdraws = False

    def __init__(self, metadata: GcpMetadata, clock: Clock, preemption: PreemptedState) -> None:
        super().__init__(metadata, clock)
        self._preemption = preemption
        self._asked = False

    @property
    def told(self) -> float | None:
        """Return the seconds of warning that the service announced; None before it is asked, or if it announces none."""
        return self._preemption.told

    def _look(self) -> Sighting:
        sighting = _shown(self._metadata.get(KEY), self._metadata, self._preemption)
        if sighting.health.seeing and not (sighting.notices or self._asked):
            self._ask()
        return sighting

    def _ask(self) -> None:
        """Ask for the notice duration. It is called only without a notice, which would have to wait.

        The result does not affect the source's health.
        """
        answer = self._metadata.get(SCHEDULING)
        self._asked = isinstance(answer, MetadataAnswer) and answer.status in (200, 404)
        seconds = (
            parse_promise(answer.body)
            if isinstance(answer, MetadataAnswer) and answer.status == 200
            else None
        )
        if seconds:
            log.debug("GCE tells of a preemption %g s before the shutdown", seconds)
            self._preemption.promise(seconds)


def _shown(answer: MetadataAnswer | Health, metadata: GcpMetadata, preemption: PreemptedState) -> Sighting:
    if isinstance(answer, Health):
        return Sighting(answer)
    preempted = parse_preempted(answer.body)
    if preempted:  # under any status: the body decides, and the server has signed it
        return Sighting(SEEING, (preemption.seen(),))
    if preempted is None or answer.status != 200:
        return Sighting(metadata.unread(KEY, answer))
    return Sighting(SEEING)


def parse_preempted(body: bytes) -> bool | None:
    """Return whether a body of the key is the notice; None if it is neither of the two known words.

    Never raises. The check is lenient for a warning and strict for its absence: only the service's own FALSE is no notice.
    """
    word = body.strip()
    if word.upper() == b"TRUE":
        return True
    return False if word == b"FALSE" else None


def parse_promise(body: bytes) -> float | None:
    """Return the preemption notice duration in the directory `instance/scheduling`, in seconds, or None. Never raises.

    Any spelling of the name counts: `gcloud` writes `preemption-notice-duration`, the API `preemptionNoticeDuration`.
    """
    folder = parse_json(body)
    for name, value in folder.items() if isinstance(folder, dict) else ():
        if re.sub("[^a-z]", "", name.lower()) == "preemptionnoticeduration":
            return parse_duration(value)
    return None


def _clamped(window: float | None) -> float:
    return WINDOW if window is None else min(max(window, WINDOW), LONGEST)
