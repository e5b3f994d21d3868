"""GCP's notices of an end that is not a preemption: host maintenance, or a requested stop of the VM.

`instance/maintenance-event` is NONE until 60 s before a live migration, in which nothing is lost. For a VM that cannot be
moved, such as one with a GPU, it changes 60 min before the VM ends. **The key must have been read once since the last
event, or the service skips the warning of a migration.** So the agent reads the key from the start.

`instance/shutdown-details/stop-state` exists if graceful shutdown is on for the VM, and tells that a stop was requested.
It does not announce preemptions (cloudpilot-ai/karpenter-provider-gcp#295).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import replace

from ...clock import Clock, monotonic_deadline
from ...health import SEEING, Health
from ...notice import Notice, NoticeKind, Severity, Sighting
from ..http import MetadataAnswer
from .metadata import GcpMetadata
from .source import GcpSource, same
from .times import parse_duration, parse_instant

log = logging.getLogger("spotguard.providers")

#: The meaning of a word: kind, severity and seconds of warning.
Meaning = tuple[NoticeKind, Severity, float]

#: The meaning of an unknown word in the place of a known one: the end, after the shortest warning of any cloud, because
#: counting on more could lose the save.
_UNKNOWN: Meaning = (NoticeKind.UNKNOWN, Severity.TERMINAL, 30.0)

#: Seconds: the longest graceful shutdown that can be configured.
_LONGEST_STOP = 3600.0

_WORD = re.compile(rb"\s*([A-Z][A-Z_]{0,60})\s*")


class MaintenanceState(GcpSource):
    """A key that holds one word: an idle state, or a notice."""

    key: str
    idle: frozenset[str]
    meanings: Mapping[str, Meaning]
    #: Whether an absent key means the idle state.
    absent: bool

    def __init__(self, metadata: GcpMetadata, clock: Clock) -> None:
        super().__init__(metadata, clock)
        self._notice: Notice | None = None
        #: Whether a known word was read. Then an unknown word is a change of state, not a peculiarity of this VM.
        self._knows = False

    def _look(self) -> Sighting:
        answer = self._metadata.get(self.key)
        if isinstance(answer, Health):
            return Sighting(answer)
        if self.absent and answer.status == 404:
            # A word withdraws a notice. A 404 does not: the service sometimes answers it for keys that exist
            # (googleapis/google-cloud-node#7688).
            return Sighting(SEEING, () if self._notice is None else (self._notice,))
        word = parse_word(answer.body) if answer.status == 200 else ""
        if word in self.idle:
            self._notice, self._knows = None, True
            return Sighting(SEEING)
        if word not in self.meanings and not (word and self._knows):
            return Sighting(self._metadata.unread(self.key, answer))
        self._knows = True
        self._notice = same(self._notice, self._made(word))
        return Sighting(SEEING, (self._notice,))

    def _made(self, word: str) -> Notice:
        """Return the notice that this word means, counted from now."""
        if word not in self.meanings and (self._notice is None or word not in self._notice.id):
            log.warning(
                "%s: %s is unknown to this program, and assumed to be the end in 30 s", self.name, word
            )
        kind, severity, window = self.meanings.get(word, _UNKNOWN)
        now = self._clock.monotonic()
        id = f"{self.name.replace(' instance', '')}/{word}"
        return Notice(id, kind, self.name, now + window, now, severity, word, window)


class MaintenanceEvent(MaintenanceState):
    """The announced effect of host maintenance on the VM. Every VM has the key, so an absent one is blindness."""

    key = "instance/maintenance-event"
    name = f"gcp {key}"
    idle = frozenset({"NONE"})
    meanings: Mapping[str, Meaning] = {
        "MIGRATE_ON_HOST_MAINTENANCE": (NoticeKind.MIGRATE, Severity.ADVISORY, 60.0),
        "TERMINATE_ON_HOST_MAINTENANCE": (NoticeKind.MAINTENANCE, Severity.LATER, 3600.0),
    }
    absent = False


class StopState(MaintenanceState):
    """Whether a stop of this VM was requested. An absent key means no: graceful shutdown has to be chosen."""

    key = "instance/shutdown-details/stop-state"
    name = f"gcp {key}"
    idle = frozenset({"UNSPECIFIED", "STOP_STATE_UNSPECIFIED", "NONE"})
    # 30 s if the key gives no duration: the time that remains to a VM whose operating system is shutting down.
    meanings: Mapping[str, Meaning] = {
        "PENDING_STOP": (NoticeKind.STOP, Severity.TERMINAL, 30.0),
        "STOPPING": (NoticeKind.STOP, Severity.TERMINAL, 30.0),
    }
    absent = True

    def _made(self, word: str) -> Notice:
        notice = super()._made(word)
        if word != "PENDING_STOP":
            return notice
        most = parse_duration(self._text("max-duration"))
        if most is None:
            return notice
        window = min(most, _LONGEST_STOP)
        asked = parse_instant(self._text("request-timestamp"))
        wall = (self._clock.time() if asked is None else asked) + window
        return replace(notice, window=window, deadline=monotonic_deadline(wall, self._clock, window))

    def _text(self, name: str) -> str:
        """Return the value of a neighbouring key, or "" if it cannot be read."""
        answer = self._metadata.get(f"instance/shutdown-details/{name}")
        found = isinstance(answer, MetadataAnswer) and answer.status == 200
        return answer.body.decode("utf-8", "replace") if found and isinstance(answer, MetadataAnswer) else ""


def parse_word(body: bytes) -> str:
    """Return the single word in capitals that the body of such a key holds; "" for anything else. Never raises."""
    match = _WORD.fullmatch(body)
    return match[1].decode() if match else ""
