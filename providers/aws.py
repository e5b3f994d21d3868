"""AWS's notice: `spot/instance-action`, two minutes before a spot instance is stopped or terminated.

The key is absent (404, with a page of XHTML) until there is a notice; then it is a JSON object with `action`
and `time`, and stays. It is polled also where `instance-life-cycle` does not say "spot": interruptible capacity
reservations are warned as well, and the documentation is silent on where.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from .aws_imds import Imds
from .clock import Clock, monotonic_deadline
from .health import SEEING, Health, Sight, blind, wrong_server
from .metadata import Answer
from .notice import JITTER, Notice, NoticeKind, Sighting

log = logging.getLogger(__name__)

PATH = "/latest/meta-data/spot/instance-action"
SOURCE = "aws spot/instance-action"

#: Seconds from the warning to the end, as documented. Hibernation begins with the warning.
_WINDOWS = {NoticeKind.TERMINATE: 120.0, NoticeKind.STOP: 120.0, NoticeKind.HIBERNATE: 0.0}

#: Seconds for what this program cannot read: an action of a later time, or an instant in no known form. As
#: short as the shortest warning of any cloud, because believing in more could lose the save.
_UNKNOWN_WINDOW = 30.0

#: Seconds. EC2 keeps the value when it fails to interrupt, so an old one is no warning. Below this it is taken
#: as one: `time` is called approximate, and a clock may be a minute off.
_STALE = 600.0


class InstanceAction:
    """`spot/instance-action` as a `NoticeSource`. Its withdrawal is not documented, so it withdraws nothing."""

    name = SOURCE
    # AWS advises 5 s: a twenty-fourth of the window. The service is local and 0.2 ms of our CPU a look.
    interval = 1.0
    withdraws = False

    def __init__(self, imds: Imds, clock: Clock) -> None:
        self._imds = imds
        self._clock = clock
        self._was_absent = False
        self._notice: Notice | None = None

    def poll(self) -> Sighting:
        try:
            return self._look()
        except Exception as error:  # a bug of ours must make us blind, which is seen, not dead, which is not
            log.debug("a look at %s failed", SOURCE, exc_info=True)
            return Sighting(blind("garbage", f"{type(error).__name__}: {error}"))

    def close(self) -> None:
        self._imds.close()

    def _look(self) -> Sighting:
        answer = self._imds.get(PATH)
        if isinstance(answer, Health):
            return Sighting(answer)
        # The body decides: a notice is believed under any status, though under another than 200 it has to be as
        # AWS writes it, for an error's JSON may have an `action` too.
        strict = answer.status != 200
        sighting = parse_instance_action(answer.body, self._clock, new=self._was_absent, strict=strict)
        if sighting.notices:
            self._notice = _same(self._notice, sighting.notices[0])
            return Sighting(self._seeing(), (self._notice,))
        if answer.status == 404 and not answer.body.lstrip().startswith(b"{"):  # an absent key has AWS's page
            if problem := self._imds.doubt():
                return Sighting(problem)
            self._was_absent = True
            return Sighting(self._seeing())
        if answer.status not in (200, 404):
            return Sighting(self._imds.judge(PATH, answer))
        return self._unread(answer, sighting)

    def _seeing(self) -> Health:
        return Health(Sight.SEEING, detail=self._imds.trouble) if self._imds.trouble else SEEING

    def _unread(self, answer: Answer, sighting: Sighting) -> Sighting:
        if answer.status == 200 and answer.body.lstrip().startswith(b"<"):
            advice = "a captive portal or a proxy answers for the metadata service: check --metadata-endpoint"
            return Sighting(wrong_server(f"GET {PATH}: 200 with a page, where JSON must be", advice))
        if sighting.health.seeing and (problem := self._imds.doubt()):  # a stale value is no notice either
            return Sighting(problem)
        return sighting


def _same(old: Notice | None, new: Notice) -> Notice:
    """One warning is one value, first read when it was first read; its deadline only moves earlier, as when
    the machine's clock is put right between two looks."""
    if old is None or old.id != new.id:
        return new
    return old if new.deadline > old.deadline - JITTER else replace(old, deadline=new.deadline)


def parse_instance_action(body: bytes, clock: Clock, *, new: bool = False, strict: bool = False) -> Sighting:
    """What a body of the key says: a notice, a stale one (seeing, and `detail` says so), or garbage (blind).

    Total: no bytes raise, and no JSON object with an action in words passes for "nothing".

    Args:
        body: as it came.
        clock: against which `time` is read.
        new: the key was seen absent before. Then its value is new, however old `time` looks: the clock is wrong.
        strict: take only an action and a time that are known; anything else is garbage.
    """
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):  # not JSON, not text, or nested to hurt
        return _garbage(body)
    action = said.get("action") if isinstance(said, dict) else None
    if not isinstance(action, str) or not action.strip():
        return _garbage(body)
    if strict and (action.strip().lower() not in _WINDOWS or parse_time(said.get("time")) is None):
        return _garbage(body)
    return _notice(action.strip().lower(), said.get("time"), clock, new)


def _notice(action: str, time: Any, clock: Clock, new: bool) -> Sighting:
    kind = NoticeKind(action) if action in {known.value for known in _WINDOWS} else NoticeKind.UNKNOWN
    wall = parse_time(time)
    now = clock.monotonic()
    detail = f"{_shown(action)} at {_shown(time)}"
    window = _WINDOWS.get(kind, _UNKNOWN_WINDOW)
    if kind is NoticeKind.UNKNOWN:
        detail += f": an action unknown to this program, taken as the end in {window:g} s"
    if wall is None:
        window = min(window, _UNKNOWN_WINDOW)
        deadline = now + window
        detail += f": not a time, taken as {window:g} s from now"
    elif not new and clock.time() - wall > _STALE:
        return Sighting(Health(Sight.SEEING, detail=f"stale, no notice: {detail}"))
    else:
        deadline = monotonic_deadline(wall, clock, window)
    # From what AWS says, and from nothing of ours: read again, also by another process, it is the same notice.
    said = f"aws/{_shown(action)}/{_shown(time) if wall is None else int(wall)}"
    notice = Notice(said, kind, SOURCE, deadline, now, detail=detail, window=window)
    return Sighting(SEEING, (notice,))


def parse_time(text: Any) -> float | None:
    """Unix seconds of AWS's `2026-11-20T10:22:00Z`, or of another ISO form (without a zone: UTC); else None."""
    if not isinstance(text, str):
        return None
    try:
        instant = datetime.fromisoformat(text.strip())
        return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _garbage(body: bytes) -> Sighting:
    shown = ascii(body[:60].decode("utf-8", "replace"))
    advice = "no notice can be read from this: report it, with this line"
    return Sighting(blind("garbage", f"GET {PATH}: no action in {shown}", advice))


def _shown(value: object) -> str:
    """A server's words, fit for one line."""
    return ascii(value)[:60].strip("'")
