"""GCP's notice: `instance/preempted`, which turns TRUE when a spot or preemptible VM is taken back, and stays so.

It has no deadline in it. By default ACPI's soft-off comes with it, and the VM is gone 30 s later; a VM that was made
with a preemption notice duration has 120 s before that. The guest is not told which it is by any documented key:
`--window` says it, else 30 s are believed in.

Two sources look at the one key, each on a connection of its own: a hanging GET, which is told at once, and a plain one
every ten seconds, because a connection that nothing comes from looks the same whether it is dead or all is well.
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
#: Seconds, where a notice duration comes before that shutdown period. It is 0 or 120, and nothing else.
LONGEST = 150.0


class PreemptedState:
    """The notice, as those who look at the key share it: from the instant at which the first of them saw it.

    Args:
        window: seconds of warning by the user's word. Below `WINDOW` it is the agent's matter.
    """

    def __init__(self, clock: Clock, window: float | None = None) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._notice: Notice | None = None
        self._said = window is not None
        self._window = _clamped(window)
        #: Seconds from the notice to the end as the service itself tells; None where it does not.
        self.told: float | None = None

    def promise(self, seconds: float) -> None:
        """The service itself says how long its notice is. The user's word is stronger: this key is documented nowhere."""
        with self._lock:
            self.told = _clamped(seconds)
            if not self._said:
                self._window = self.told

    def seen(self) -> Notice:
        """The notice that TRUE is."""
        with self._lock:
            if self._notice is None:
                now = self._clock.monotonic()
                self._notice = Notice(
                    # The value says nothing more, and the VM does not come back from it under this boot.
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
    """The hanging GET: TRUE is seen when it is made so."""

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
        # The answers set the pace; where they are of no use, whoever looks backs off by himself.
        self.interval = self._get.interval if sighting.health.seeing else RETRY
        if sighting.health.seeing and self._get.trouble:
            return Sighting(Health(Sight.SEEING, detail=self._get.trouble), sighting.notices)
        return sighting


class PreemptedPlainly(GcpSource):
    """The plain GET beside it. It also asks, once, how long the notice is."""

    name = f"{SOURCE}, plain GET"
    withdraws = False

    def __init__(self, metadata: GcpMetadata, clock: Clock, preemption: PreemptedState) -> None:
        super().__init__(metadata, clock)
        self._preemption = preemption
        self._asked = False

    @property
    def told(self) -> float | None:
        """Seconds of warning that the service itself promised, once it was asked; None where it tells none."""
        return self._preemption.told

    def _look(self) -> Sighting:
        sighting = _shown(self._metadata.get(KEY), self._metadata, self._preemption)
        if sighting.health.seeing and not (sighting.notices or self._asked):
            self._ask()
        return sighting

    def _ask(self) -> None:
        """Where there is no notice, which would wait for it; and whatever comes of it, sight is not touched by it."""
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
    """Whether a body of the key is the notice; None where it is neither of the two words that are known.

    Total. Lenient where it warns, strict where it would calm: only the service's own FALSE is no notice.
    """
    word = body.strip()
    if word.upper() == b"TRUE":
        return True
    return False if word == b"FALSE" else None


def parse_promise(body: bytes) -> float | None:
    """Seconds of a preemption notice duration in the folder `instance/scheduling`, under whatever spelling it may
    come: `gcloud` writes `preemption-notice-duration`, the API `preemptionNoticeDuration`. None where there is none.
    Total."""
    said = parse_json(body)
    for name, value in said.items() if isinstance(said, dict) else ():
        if re.sub("[^a-z]", "", name.lower()) == "preemptionnoticeduration":
            return parse_duration(value)
    return None


def _clamped(window: float | None) -> float:
    return WINDOW if window is None else min(max(window, WINDOW), LONGEST)
