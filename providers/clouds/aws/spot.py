"""AWS's notice: `spot/instance-action`, two minutes before a spot instance is stopped or terminated.

The key is absent (404, with a page of XHTML) until there is a notice; then it is a JSON object with `action`
and `time`, and stays. It is polled also where `instance-life-cycle` does not say "spot": interruptible capacity
reservations are warned as well, and the documentation is silent on where. `spot/termination-time` is older and
says the same of terminations only: it is looked at now and then, for whoever hides the one and shows the other.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ...clock import Clock, monotonic_deadline
from ...dates import parse_iso
from ...health import SEEING, Health, Sight
from ...notice import Notice, NoticeKind, Sighting
from ..http import parse_json
from .imds import AwsImds
from .source import ROOT, SHORT_WINDOW, STALE, AwsSource, parse_date, shown, unread

_ACTION = "spot/instance-action"
_TIME = "spot/termination-time"

PATH = ROOT + _ACTION

#: Seconds from the warning to the end, as documented. Hibernation begins with the warning.
_WINDOWS = {NoticeKind.TERMINATE: 120.0, NoticeKind.STOP: 120.0, NoticeKind.HIBERNATE: 0.0}

#: Seconds: `instance-action` is asked for within one of them, and answers or fails within two.
_SECOND_LOOK = 3.0

#: A time as AWS writes it. Not every ISO form: the key may hold a value that is no time, and some numbers are dates.
_INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?(Z|[+-][0-9]{2}:?[0-9]{2})"
)


class InstanceAction(AwsSource):
    """`spot/instance-action` as a `NoticeSource`. Its withdrawal is not documented, so it withdraws nothing."""

    key = _ACTION
    single = True
    # AWS advises 5 s: a twenty-fourth of the window. The service is local and 0.2 ms of our CPU a look.
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
    """`spot/termination-time`, one bare time, as a `NoticeSource`. What it says of an instant, `instance-action` says
    too, under the same id: it is one notice. It is told at the second look, so that it is the other's where that sees."""

    key = _TIME
    single = True

    def __init__(self, imds: AwsImds, clock: Clock) -> None:
        super().__init__(imds, clock)
        self._held_none = False
        #: What the last look found that could see.
        self._stood: set[str] = set()

    def poll(self) -> Sighting:
        said = super().poll()
        told = tuple(notice for notice in said.notices if notice.id in self._stood)
        if said.health.seeing:
            self._stood = {notice.id for notice in said.notices}
        self.interval = _SECOND_LOOK if len(told) < len(said.notices) else AwsSource.interval
        return replace(said, notices=told)

    def read(self, body: bytes, *, sure: bool) -> Sighting:
        said = parse_termination_time(body, self._clock, new=self._held_none, strict=not sure)
        self._held_none |= said.health.seeing and _instant(body.decode("ascii", "replace")) is None
        return said

    def absent(self) -> Sighting:
        self._held_none = True
        return Sighting(SEEING)


def parse_instance_action(body: bytes, clock: Clock, *, new: bool = False, strict: bool = False) -> Sighting:
    """What a body of the key says: a notice, a stale one (seeing, and `detail` says so), or garbage (blind).

    Total: no bytes raise, and no JSON object with an action in words passes for "nothing".

    Args:
        body: as it came.
        clock: against which `time` is read.
        new: the key was seen absent before. Then its value is new, however old `time` looks: the clock is wrong.
        strict: take only an action and a time that are known; anything else is garbage.
    """
    said = parse_json(body)
    action = said.get("action") if isinstance(said, dict) else None
    if not isinstance(action, str) or not action.strip():
        return Sighting(unread(_ACTION, body, "action"))
    if strict and (action.strip().lower() not in _WINDOWS or parse_iso(said.get("time")) is None):
        return Sighting(unread(_ACTION, body, "action"))
    time = said.get("time")
    return _notice(_ACTION, action.strip().lower(), time, parse_iso(time), clock, new)


def parse_termination_time(body: bytes, clock: Clock, *, new: bool = False, strict: bool = False) -> Sighting:
    """The same of a body of the legacy key. A short line that holds no time is documented, and nothing.

    Total: no bytes raise, and nothing that has the form of a time passes for "nothing".
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
    return parse_iso(text) if iso else parse_date(text)


def _notice(key: str, action: str, time: Any, wall: float | None, clock: Clock, new: bool) -> Sighting:
    kind = NoticeKind(action) if action in {known.value for known in _WINDOWS} else NoticeKind.UNKNOWN
    now = clock.monotonic()
    detail = f"{shown(action)} at {shown(time)}"
    window = _WINDOWS.get(kind, SHORT_WINDOW)
    if kind is NoticeKind.UNKNOWN:
        detail += f": an action unknown to this program, taken as the end in {window:g} s"
    if wall is None:
        window = min(window, SHORT_WINDOW)
        deadline = now + window
        detail += f": not a time, taken as {window:g} s from now"
    elif not new and clock.time() - wall > STALE:
        return Sighting(Health(Sight.SEEING, detail=f"stale, no notice: {detail}"))
    else:
        deadline = monotonic_deadline(wall, clock, window)
    # From what AWS says, and from nothing of ours: read again, also by another process, it is the same notice.
    said = f"aws/{shown(action)}/{shown(time) if wall is None else int(wall)}"
    notice = Notice(said, kind, f"aws {key}", deadline, now, detail=detail, window=window)
    return Sighting(SEEING, (notice,))
