"""GCP's words for an end that is no preemption: the host is serviced, or somebody stops the VM.

`instance/maintenance-event` is NONE, until 60 s before a live migration (of which nothing is lost), or 60 min before a
VM that cannot be moved is ended, as those with GPUs are. **It has to have been read once since the last event, or the
warning of a migration is skipped**: so it is read from the start on.

`instance/shutdown-details/stop-state` is there where graceful shutdown is switched on for the VM, and says that a stop
was asked for. It does not speak for preemptions (cloudpilot-ai/karpenter-provider-gcp#295).
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

#: What a word means: kind, severity and seconds of warning.
Meaning = tuple[NoticeKind, Severity, float]

#: Of a word that this program does not know, in the place of one that it does: the end, and as soon as the shortest
#: warning of any cloud has it, because believing in more could lose the save.
_UNKNOWN: Meaning = (NoticeKind.UNKNOWN, Severity.TERMINAL, 30.0)

#: Seconds: the most that a graceful shutdown may be made to last.
_LONGEST_STOP = 3600.0

_WORD = re.compile(rb"\s*([A-Z][A-Z_]{0,60})\s*")


class MaintenanceState(GcpSource):
    """A key that holds one word: a state that is idle, or one that is a notice."""

    key: str
    idle: frozenset[str]
    meanings: Mapping[str, Meaning]
    #: Whether the key's absence means that it is idle.
    absent: bool

    def __init__(self, metadata: GcpMetadata, clock: Clock) -> None:
        super().__init__(metadata, clock)
        self._notice: Notice | None = None
        #: A word was read that is known: another one is then a change of state, and no oddity of this VM.
        self._knows = False

    def _look(self) -> Sighting:
        answer = self._metadata.get(self.key)
        if isinstance(answer, Health):
            return Sighting(answer)
        if self.absent and answer.status == 404:
            # A word takes a notice back. A 404 does not: the service says one now and then of keys that are there
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
        """The notice that this word is, from now on."""
        if word not in self.meanings and (self._notice is None or word not in self._notice.id):
            log.warning("%s: %s is unknown to this program, and taken as the end in 30 s", self.name, word)
        kind, severity, window = self.meanings.get(word, _UNKNOWN)
        now = self._clock.monotonic()
        id = f"{self.name.replace(' instance', '')}/{word}"
        return Notice(id, kind, self.name, now + window, now, severity, word, window)


class MaintenanceEvent(MaintenanceState):
    """What is about to happen to the VM because its host is serviced. Its absence is blindness: every VM has it."""

    key = "instance/maintenance-event"
    name = f"gcp {key}"
    idle = frozenset({"NONE"})
    meanings: Mapping[str, Meaning] = {
        "MIGRATE_ON_HOST_MAINTENANCE": (NoticeKind.MIGRATE, Severity.ADVISORY, 60.0),
        "TERMINATE_ON_HOST_MAINTENANCE": (NoticeKind.MAINTENANCE, Severity.LATER, 3600.0),
    }
    absent = False


class StopState(MaintenanceState):
    """Whether somebody has asked for this VM to be stopped. Absent is off: graceful shutdown has to be chosen."""

    key = "instance/shutdown-details/stop-state"
    name = f"gcp {key}"
    idle = frozenset({"UNSPECIFIED", "STOP_STATE_UNSPECIFIED", "NONE"})
    # 30 s where nothing more is said: what is left to a VM whose operating system is being shut down.
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
        """A neighbour of the key; "" where it cannot be read."""
        answer = self._metadata.get(f"instance/shutdown-details/{name}")
        whole = isinstance(answer, MetadataAnswer) and answer.status == 200
        return answer.body.decode("utf-8", "replace") if whole and isinstance(answer, MetadataAnswer) else ""


def parse_word(body: bytes) -> str:
    """The one word in capitals that a body is, as these keys have them; "" where it is anything else. Total."""
    match = _WORD.fullmatch(body)
    return match[1].decode() if match else ""
