"""Base class of the sources that each read one key of EC2's metadata, and the rules by which they believe it.

The law of these sources: an absent key is good news only from a service that has shown a key which must be there.
An answer that cannot be read is blindness, whatever its status.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from dataclasses import replace

from ...clock import Clock
from ...health import SEEING, Health, Sight, blind, wrong_server
from ...notice import JITTER, Notice, NoticeKind, Severity, Sighting, looked
from ..http import MetadataAnswer, coded
from .imds import GET_TIMEOUT, AwsImds

log = logging.getLogger("spotguard.providers")

#: The directory of all watched keys; a source's name is the path below it.
ROOT = "/latest/meta-data/"

#: Seconds for a value that this program cannot read, or for which AWS gives no time. As short as the shortest warning of
#: any cloud, because counting on more could lose the save.
SHORT_WINDOW = 30.0

#: Seconds after its time at which a newly read warning is stale. EC2 keeps the value when an interruption fails, and an
#: old value would end every run on a machine that was spared. AWS calls its times approximate, and a clock may be a
#: minute off: three times that still counts as "now". Clocks that are wrong by more are wrong by hours, for which no
#: number is right. A value that was seen to appear is never stale.
STALE = 180.0

#: Seconds within which a changed value is the same warning with a moving time, not new advice.
_MOVES = 60.0


class AwsSource(ABC):
    """A `NoticeSource` that reads one key. A subclass names the key, the interval, and the meaning of a body."""

    #: The key's path below `ROOT`.
    key: str
    # AWS advises 5 s for a key that announces the end; a key that only warns leaves minutes.
    interval: float = 10.0
    #: The requests after the read share its time. When that time is used up, each has a tenth of a second.
    longest: float = GET_TIMEOUT + 1.0
    withdraws = False
    #: Whether the key holds at most one warning. With another time it is still the same warning, and the earliest time
    #: counts. AWS's public mock writes the time of each request into it (amazon-ec2-metadata-mock, without `-t`).
    single = False

    def __init__(self, imds: AwsImds, clock: Clock) -> None:
        self.name = f"aws {self.key}"
        self._imds = imds
        self._clock = clock
        #: The notices of the last poll that showed any.
        self._shown: dict[str, Notice] = {}
        #: Whether the key was seen without a warning since the last one; then the next warning is new.
        self._cleared = False
        #: The id of the key's last value, before any tolerance.
        self._last_id = ""
        #: The monotonic time at which the value `_last_id` first appeared.
        self._new_at = -math.inf

    @abstractmethod
    def read(self, body: bytes, *, sure: bool) -> Sighting:
        """Return what a body means: notices, nothing (seeing), or unreadable (blind). Never raises.

        Args:
            sure: the status is 200. Under any other status only fully known words count, because an error's JSON may
                look like a notice.
        """

    def absent(self) -> Sighting:
        """Return what an absent key means, on a service that has proved to be an instance's."""
        return Sighting(SEEING)

    def poll(self) -> Sighting:
        return looked(self.name, self._look)

    def close(self) -> None:
        self._imds.close()

    def _look(self) -> Sighting:
        answer = self._imds.get(ROOT + self.key)
        if isinstance(answer, Health):
            return Sighting(answer)
        # The body decides: a notice counts under any status.
        sighting = self.read(answer.body, sure=answer.status == 200)
        if not sighting.notices:
            sighting = self._judged(answer, sighting)
        return self._kept(sighting)

    def _judged(self, answer: MetadataAnswer, sighting: Sighting) -> Sighting:
        """Return the sighting of an answer without a notice, by its status and form."""
        path = ROOT + self.key
        if answer.status not in (200, 404):
            return Sighting(self._imds.judge(path, answer))
        begins = answer.body.lstrip()[:1]
        absent = answer.status == 404 and begins not in (b"{", b"[")  # AWS sends a page with its 404
        if not absent and begins == b"<":
            advice = "a captive portal or a proxy answers for the metadata service: check --metadata-endpoint"
            stranger = wrong_server(f"GET {path}: {answer.status} with a page, where none can be", advice)
            return Sighting(coded(stranger, answer))
        if (absent or sighting.health.seeing) and (problem := self._imds.doubt()):
            return Sighting(problem)
        self._cleared |= absent or sighting.health.seeing
        return self.absent() if absent else replace(sighting, health=coded(sighting.health, answer))

    def _kept(self, sighting: Sighting) -> Sighting:
        """Return the sighting with known notices as first read: one warning stays one value."""
        notices = tuple(_same(self._known(notice), notice) for notice in sighting.notices)
        for notice in notices:
            if notice.kind is NoticeKind.UNKNOWN and notice.id not in self._shown:
                log.warning("%s: %s; please report it", self.name, notice.detail)
        health = sighting.health
        if health.seeing and (notices or self.withdraws):
            self._shown = {}
        self._shown |= {notice.id: notice for notice in notices}
        if health.seeing and self._imds.trouble:
            health = Health(Sight.SEEING, detail=health.detail or self._imds.trouble)
        return Sighting(health, notices)

    def _known(self, notice: Notice) -> Notice | None:
        """Return the earlier warning that this one repeats, or None."""
        old = self._shown.get(notice.id)
        now, cleared = self._clock.monotonic(), self._cleared
        self._cleared = False
        stands, moves = notice.id == self._last_id, now - self._new_at <= _MOVES
        if not stands:
            self._last_id, self._new_at = notice.id, now
        if old is None and self.single and not cleared:
            for each in self._shown.values():
                # This machine ends once. Advice that changes after standing still for a while is new advice.
                goes_on = moves if each.severity is Severity.ADVISORY else now <= each.deadline + STALE
                if each.kind is notice.kind and (stands or goes_on):
                    return each
        return old


def _same(old: Notice | None, new: Notice) -> Notice:
    """Return one warning for two readings of it. Its deadline only moves earlier, as after a correction of the clock."""
    if old is None or old.severity is not new.severity:
        return new
    return old if new.deadline > old.deadline - JITTER else replace(old, deadline=new.deadline)


def unread(key: str, body: bytes, wanted: str) -> Health:
    """Return blindness: there is an answer, and `wanted` is not in it."""
    what = f"GET {ROOT}{key}: no {wanted} in {body[:60].decode('utf-8', 'replace')!a}"
    return blind("garbage", what, "no notice can be read from this: report it, with this line")


def shown(value: object) -> str:
    """Return a server's value as text for one line; for a nested value only its type."""
    plain = value if value is None or isinstance(value, str | int | float) else type(value).__name__
    return ascii(plain)[:60].strip("'")
