"""One key of EC2's metadata as a source: asked for, read, and believed as far as its words go.

The law of these sources: an absent key is good news only from a service that has shown a key which must be there,
and an answer that cannot be read is blindness, whatever its status says.
"""

from __future__ import annotations

import logging
import math
import re
from abc import ABC, abstractmethod
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ...clock import Clock
from ...health import SEEING, Health, Sight, blind, wrong_server
from ...notice import JITTER, Notice, NoticeKind, Severity, Sighting, looked
from ..http import MetadataAnswer, coded
from .imds import GET_TIMEOUT, AwsImds

log = logging.getLogger("spotguard.providers")

#: Below it lie all keys that are watched; a source is named for what follows.
ROOT = "/latest/meta-data/"

#: Seconds for what this program cannot read, or what AWS gives no time for. As short as the shortest warning of any
#: cloud, because believing in more could lose the save.
SHORT_WINDOW = 30.0

#: Seconds after its time at which a warning that is *found* is no warning any more. EC2 keeps the value when it fails
#: to interrupt, and an old one would end every run on a machine that was spared. AWS calls its times approximate,
#: and a clock may be a minute off: three times that is still taken as "now". Clocks that are wrong by more are wrong by
#: hours, for which no figure is right; a value that was seen to appear is never old.
STALE = 180.0

#: Seconds within which a key that holds something else again holds a time that moves, and no new advice.
_MOVES = 60.0

_DATE = re.compile(
    r"(?:[A-Z][a-z]{2}, )?([0-9]{1,2}) ([A-Z][a-z]{2}) ([0-9]{4}) ([0-9]{2}):([0-9]{2}):([0-9]{2}) (?:GMT|UTC)"
)
#: Of RFC 9110, 5.6.7, in English always: strptime's would be the machine's own language.
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class AwsSource(ABC):
    """A `NoticeSource` that reads one key. A subclass says which, how often, and what its body says."""

    #: Below `ROOT`.
    key: str
    # AWS advises 5 s for what ends the machine; what only warns has minutes.
    interval: float = 10.0
    #: What is asked for behind the read shares its time, and has a tenth of a second each where none is left.
    longest: float = GET_TIMEOUT + 1.0
    withdraws = False
    #: Whether the key holds one warning at most: with another time it is still that one, and the earliest time stands.
    #: AWS's public mock writes the time of each request into it (amazon-ec2-metadata-mock, without `-t`).
    single = False

    def __init__(self, imds: AwsImds, clock: Clock) -> None:
        self.name = f"aws {self.key}"
        self._imds = imds
        self._clock = clock
        #: What was shown by the last look that showed anything.
        self._shown: dict[str, Notice] = {}
        #: Since the last warning the key was seen without one: what it holds next is new.
        self._cleared = False
        #: What the key held last, before any tolerance, and since when.
        self._last_id = ""
        self._new_at = -math.inf

    @abstractmethod
    def read(self, body: bytes, *, sure: bool) -> Sighting:
        """What a body says: notices, nothing (seeing), or that it cannot be read (blind). Total.

        Args:
            sure: the status is 200. Under any other only words that are known in full count: an error's JSON may
                look like a notice.
        """

    def absent(self) -> Sighting:
        """What it means that the key is not there, on a service that is an instance's."""
        return Sighting(SEEING)

    def poll(self) -> Sighting:
        return looked(self.name, self._look)

    def close(self) -> None:
        self._imds.close()

    def _look(self) -> Sighting:
        answer = self._imds.get(ROOT + self.key)
        if isinstance(answer, Health):
            return Sighting(answer)
        # The body decides: a notice is believed under any status.
        said = self.read(answer.body, sure=answer.status == 200)
        if not said.notices:
            said = self._judged(answer, said)
        return self._kept(said)

    def _judged(self, answer: MetadataAnswer, said: Sighting) -> Sighting:
        """What an answer without a notice is worth."""
        path = ROOT + self.key
        if answer.status not in (200, 404):
            return Sighting(self._imds.judge(path, answer))
        begins = answer.body.lstrip()[:1]
        absent = answer.status == 404 and begins not in (b"{", b"[")  # with a page of AWS's
        if not absent and begins == b"<":
            advice = "a captive portal or a proxy answers for the metadata service: check --metadata-endpoint"
            stranger = wrong_server(f"GET {path}: {answer.status} with a page, where none can be", advice)
            return Sighting(coded(stranger, answer))
        if (absent or said.health.seeing) and (problem := self._imds.doubt()):
            return Sighting(problem)
        self._cleared |= absent or said.health.seeing
        return self.absent() if absent else replace(said, health=coded(said.health, answer))

    def _kept(self, said: Sighting) -> Sighting:
        """One warning is one value, first read when it was first read."""
        notices = tuple(_same(self._known(notice), notice) for notice in said.notices)
        for notice in notices:
            if notice.kind is NoticeKind.UNKNOWN and notice.id not in self._shown:
                log.warning("%s: %s; please report it", self.name, notice.detail)
        health = said.health
        if health.seeing and (notices or self.withdraws):
            self._shown = {}
        self._shown |= {notice.id: notice for notice in notices}
        if health.seeing and self._imds.trouble:
            health = Health(Sight.SEEING, detail=health.detail or self._imds.trouble)
        return Sighting(health, notices)

    def _known(self, notice: Notice) -> Notice | None:
        """The warning that this one repeats, if any."""
        old = self._shown.get(notice.id)
        now, cleared = self._clock.monotonic(), self._cleared
        self._cleared = False
        stands, moves = notice.id == self._last_id, now - self._new_at <= _MOVES
        if not stands:
            self._last_id, self._new_at = notice.id, now
        if old is None and self.single and not cleared:
            for each in self._shown.values():
                # The end of this machine comes once. Advice that stood still for a while and is new is new advice.
                goes_on = moves if each.severity is Severity.ADVISORY else now <= each.deadline + STALE
                if each.kind is notice.kind and (stands or goes_on):
                    return each
        return old


def _same(old: Notice | None, new: Notice) -> Notice:
    """A deadline only moves earlier, as when the machine's clock is put right between two looks."""
    if old is None or old.severity is not new.severity:
        return new
    return old if new.deadline > old.deadline - JITTER else replace(old, deadline=new.deadline)


def unread(key: str, body: bytes, wanted: str) -> Health:
    """Blind: there is an answer, and `wanted` is not in it."""
    what = f"GET {ROOT}{key}: no {wanted} in {body[:60].decode('utf-8', 'replace')!a}"
    return blind("garbage", what, "no notice can be read from this: report it, with this line")


def parse_date(text: Any) -> float | None:
    """Unix seconds of the scheduled events' `21 Jan 2019 09:00:43 GMT`; else None."""
    match = _DATE.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        return None
    try:
        day, year, hour, minute, second = (int(match[group]) for group in (1, 3, 4, 5, 6))
        return datetime(year, _MONTHS.index(match[2]) + 1, day, hour, minute, second, tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):  # no such month, or no such day in it
        return None


def shown(value: object) -> str:
    """A server's words, fit for one line. Of what is nested, only what it is."""
    plain = value if value is None or isinstance(value, str | int | float) else type(value).__name__
    return ascii(plain)[:60].strip("'")
