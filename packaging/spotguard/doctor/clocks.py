"""This machine's clock beside the store's, or the metadata service's: signatures of a wrong one are refused.

What is compared is the `Date` of an answer (RFC 9110, 6.6.1), in whole seconds and some milliseconds old: a few seconds
mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from spotguard.providers.clock import Clock

from .findings import Finding, fails, ok, warning

#: Seconds that mean nothing; and from which requests are refused: 15 minutes by S3 (RequestTimeTooSkewed) and Azure's keys,
#: 5 by AWS's STS and by all who give out tokens.
NOTHING, REFUSED = 5.0, 300.0

_SET_IT = "set this machine's clock: timedatectl set-ntp true, or chronyc makestep"


class Dates:
    """What the answers have said of the time: the last of them counts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Seconds by which this machine is ahead of who answered; None: nobody has said.
        self.ahead: float | None = None
        #: Who that was: "the store".
        self.whose = ""

    def hear(self, whose: str, headers: Mapping[str, str]) -> None:
        """An answer. For any thread."""
        try:
            said = parsedate_to_datetime(headers.get("Date", ""))
        except ValueError:  # an answer without a date, as some proxies give: nothing is known by it
            return
        # That second may be nearly over: up to one less is none.
        ahead = self._clock.time() - said.replace(tzinfo=said.tzinfo or UTC).timestamp()
        self.ahead, self.whose = (ahead if ahead < 0 else max(0.0, ahead - 1.0)), whose


def judge(dates: Dates) -> Finding:
    if dates.ahead is None:
        return ok("clock", "not compared: nobody has answered with a date", skew_seconds=None)
    off = abs(dates.ahead)
    side = "ahead of" if dates.ahead > 0 else "behind"
    facts: dict[str, Any] = {"skew_seconds": round(dates.ahead, 1)}
    if off <= NOTHING:
        return ok("clock", f"within {NOTHING:g} s of {dates.whose}'s", **facts)
    found = f"{off:.0f} s {side} {dates.whose}'s"
    if off >= REFUSED:
        return fails("clock", f"{found}: requests signed by it are refused", _SET_IT, **facts)
    return warning("clock", f"{found}: refused from {REFUSED:g} s on", _SET_IT, **facts)
