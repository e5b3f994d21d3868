"""AWS's spot notice: `spot/instance-action`, two minutes before a spot instance is stopped or terminated.

The key is absent (404, with a page of XHTML) until there is a notice. Then it is a JSON object with `action` and `time`,
and stays. The agent polls it even if `instance-life-cycle` is not "spot": AWS warns interruptible capacity
reservations as well, and does not document where. `spot/termination-time` is older and announces terminations only.
The agent polls it less often, for proxies that hide one key and show the other.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ...clock import Clock, monotonic_deadline
from ...dates import parse_http_date, parse_iso
from ...health import SEEING, Health, Sight
from ...notice import Notice, NoticeKind, Sighting
from ..http import parse_json
from .imds import AwsImds
from .source import ROOT, SHORT_WINDOW, STALE, AwsSource, shown, unread

_ACTION = "spot/instance-action"
_TIME = "spot/termination-time"

PATH = ROOT + _ACTION

#: Seconds from the warning to the end, as documented. Hibernation begins with the warning.
_WINDOWS = {NoticeKind.TERMINATE: 120.0, NoticeKind.STOP: 120.0, NoticeKind.HIBERNATE: 0.0}

#: Seconds to the second poll: `instance-action` is polled within one second, and answers or fails within two.
_SECOND_LOOK = 3.0

#: A time as AWS writes it. Other ISO forms are excluded: the key may hold a value that is not a time, and some numbers
#: are ISO dates.
_INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?(Z|[+-][0-9]{2}:?[0-9]{2})"
)


class InstanceAction(AwsSource):
    """`spot/instance-action` as a `NoticeSource`. AWS documents no withdrawal, so this source withdraws nothing."""

    key = _ACTION
    single = True
    # AWS advises 5 s, a twenty-fourth of the window. The service is local, and a poll costs 0.2 ms of CPU.
    interval = 1.0

    def __init__(self, imds: AwsImds, clock: Clock) -> None:
        super().__init__(imds, clock)
        self._was_absent = False

    def read(self, body: bytes, *, sure: bool) -> Sighting:
        return parse_instance_action(body, self._clock, new=self._was_absent, strict=not sure)

    def absent(self) -> Sighting:
        self._was_absent = True
        return Sighting(SEEING)


class TerminationTime(AwsSource):
    """`spot/termination-time`, one bare time, as a `NoticeSource`.

    A notice here has the same id as the one in `instance-action` for the same instant: they are one notice. This source
    delivers a notice at its second poll only, so that `instance-action` delivers it first if that source sees.
    """

    key = _TIME
    single = True

    def __init__(self, imds: AwsImds, clock: Clock) -> None:
        super().__init__(imds, clock)
        self._held_none = False
        #: Ids of the notices at the last poll that was SEEING.
        self._stood: set[str] = set()

    def poll(self) -> Sighting:
        sighting = super().poll()
        delivered = tuple(notice for notice in sighting.notices if notice.id in self._stood)
        if sighting.health.seeing:
            self._stood = {notice.id for notice in sighting.notices}
        self.interval = _SECOND_LOOK if len(delivered) < len(sighting.notices) else AwsSource.interval
        return replace(sighting, notices=delivered)

    def read(self, body: bytes, *, sure: bool) -> Sighting:
        sighting = parse_termination_time(body, self._clock, new=self._held_none, strict=not sure)
        self._held_none |= sighting.health.seeing and _instant(body.decode("ascii", "replace")) is None
        return sighting

    def absent(self) -> Sighting:
        self._held_none = True
        return Sighting(SEEING)


def parse_instance_action(body: bytes, clock: Clock, *, new: bool = False, strict: bool = False) -> Sighting:
    """Return what a body of the key means: a notice, a stale one (seeing, with `detail`), or garbage (blind).

    Never raises. A JSON object whose action is a text never counts as "nothing".

    Args:
        body: the body as received.
        clock: the clock against which `time` is read.
        new: the key was absent before. Then its value is new even if `time` looks old, because the clock is wrong.
        strict: accept only a known action and a time that can be parsed; anything else is garbage.
    """
    document = parse_json(body)
    action = document.get("action") if isinstance(document, dict) else None
    if not isinstance(action, str) or not action.strip():
        return Sighting(unread(_ACTION, body, "action"))
    if strict and (action.strip().lower() not in _WINDOWS or parse_iso(document.get("time")) is None):
        return Sighting(unread(_ACTION, body, "action"))
    time = document.get("time")
    return _notice(_ACTION, action.strip().lower(), time, parse_iso(time), clock, new)


def parse_termination_time(body: bytes, clock: Clock, *, new: bool = False, strict: bool = False) -> Sighting:
    """Return what a body of the legacy key means. A short line without a time is documented, and means nothing.

    Never raises. A value in the form of a time never counts as "nothing".
    """
    text = body.decode("ascii", "replace").strip()
    if (wall := _instant(text)) is not None:
        return _notice(_TIME, "terminate", text, wall, clock, new)
    line = 0 < len(text) <= 60 and text.isascii() and text.isprintable() and text[0] not in "{[<"
    if strict or not line or _INSTANT.fullmatch(text):
        return Sighting(unread(_TIME, body, "time"))
    return Sighting(Health(Sight.SEEING, detail=f"no time, no notice: {shown(text)}"))


def _instant(text: str) -> float | None:
    iso = _INSTANT.fullmatch(text.strip()) is not None
    return parse_iso(text) if iso else parse_http_date(text)


def _notice(key: str, action: str, time: Any, wall: float | None, clock: Clock, new: bool) -> Sighting:
    kind = NoticeKind(action) if action in {known.value for known in _WINDOWS} else NoticeKind.UNKNOWN
    now = clock.monotonic()
    detail = f"{shown(action)} at {shown(time)}"
    window = _WINDOWS.get(kind, SHORT_WINDOW)
    if kind is NoticeKind.UNKNOWN:
        detail += f": an action unknown to this program, assumed to be the end in {window:g} s"
    if wall is None:
        window = min(window, SHORT_WINDOW)
        deadline = now + window
        detail += f": not a time, taken as {window:g} s from now"
    elif not new and clock.time() - wall > STALE:
        return Sighting(Health(Sight.SEEING, detail=f"stale, no notice: {detail}"))
    else:
        deadline = monotonic_deadline(wall, clock, window)
    # The id comes only from AWS's values: another read, even by another process, gives the same notice.
    id = f"aws/{shown(action)}/{shown(time) if wall is None else int(wall)}"
    notice = Notice(id, kind, f"aws {key}", deadline, now, detail=detail, window=window)
    return Sighting(SEEING, (notice,))
