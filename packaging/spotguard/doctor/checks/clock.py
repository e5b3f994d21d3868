"""The check of this machine's clock against the store's, or the metadata service's.

A store refuses signed requests of a machine whose clock is wrong. The check compares the `Date` of an answer (RFC 9110,
6.6.1). It has whole seconds and is some milliseconds old, so a few seconds mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spotguard.providers.clock import Clock
from spotguard.providers.dates import parse_http_date

from ..finding import Finding, fails, ok, warning

#: Differences in seconds: up to NOTHING it means nothing. From TOKENS on a token service may refuse (AWS's STS accepts what
#: was signed in the last 5 minutes). From SIGNATURES on S3 (RequestTimeTooSkewed) and Azure's keys refuse: 15 minutes.
NOTHING, TOKENS, SIGNATURES = 5.0, 300.0, 900.0
#: The stores whose requests are signed. Google's requests carry only a token, and the metadata server gives a machine its
#: token without a check of its clock.
_SIGNED = ("s3", "az")

_SET_IT = "set this machine's clock: timedatectl set-ntp true, or chronyc makestep"


class Dates:
    """The clock's difference to the answers' dates. The last answer counts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Seconds by which this machine's clock is ahead of the answering service; None if no answer had a date.
        self.ahead: float | None = None
        #: Name of that service, such as "the store".
        self.whose = ""

    def hear(self, whose: str, headers: Mapping[str, str]) -> None:
        """Take the date of an answer. Any thread may call it."""
        theirs = parse_http_date(headers.get("Date"))
        if theirs is None:  # no date, as in some proxies' answers
            return
        # The date's second may be nearly over, so up to one second ahead counts as none.
        ahead = self._clock.time() - theirs
        self.ahead, self.whose = (ahead if ahead < 0 else max(0.0, ahead - 1.0)), whose


def judge(dates: Dates, scheme: str, *, taken: bool) -> Finding:
    """Return the finding about the clock.

    Args:
        dates: the dates of the answers.
        scheme: the scheme of the store's URL.
        taken: the store has accepted a request of this machine, with this clock.
    """
    if dates.ahead is None:
        folder = scheme == "file"
        found = (
            "not needed: nothing is signed for a directory"
            if folder
            else "not checked: no server has sent a date"
        )
        return ok("clock", found, skew_seconds=None)
    off = abs(dates.ahead)
    side = "ahead of" if dates.ahead > 0 else "behind"
    facts: dict[str, Any] = {"skew_seconds": round(dates.ahead, 1)}
    if off <= NOTHING:
        return ok("clock", f"within {NOTHING:g} s of {dates.whose}'s", **facts)
    found = f"{off:.0f} s {side} {dates.whose}'s"
    tokens = f"new tokens may be refused from {TOKENS:g} s on"
    signatures = f"signatures are refused from {SIGNATURES:g} s on"
    if scheme == "file":
        return warning("clock", f"{found}: nothing is signed for a directory", _SET_IT, **facts)
    if scheme not in _SIGNED:
        return warning("clock", f"{found}: {tokens}", _SET_IT, **facts)
    if off < SIGNATURES:
        return warning("clock", f"{found}: {tokens}, {signatures}", _SET_IT, **facts)
    if taken:  # an S3-compatible store that ignores the time, or a token for Azure
        return warning("clock", f"{found}: this store takes it all the same; {tokens}", _SET_IT, **facts)
    return fails("clock", f"{found}: {signatures}", _SET_IT, **facts)
