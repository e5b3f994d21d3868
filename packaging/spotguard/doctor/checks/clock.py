"""This machine's clock beside the store's, or the metadata service's: where requests are signed, a wrong one's are refused.

What is compared is the `Date` of an answer (RFC 9110, 6.6.1), in whole seconds and some milliseconds old: a few seconds
mean nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spotguard.providers.clock import Clock
from spotguard.providers.dates import parse_http_date

from ..finding import Finding, fails, ok, warning

#: Seconds that mean nothing; from which who gives out tokens may refuse (AWS's STS takes what was signed in the last 5
#: minutes); and from which a signature is refused: 15 minutes by S3 (RequestTimeTooSkewed) and with Azure's keys.
NOTHING, TOKENS, SIGNATURES = 5.0, 300.0, 900.0
#: The stores whose requests are signed. Google's carry a token alone, and a machine's own is given out without a look at its clock.
_SIGNED = ("s3", "az")

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
        if (
            theirs := parse_http_date(headers.get("Date"))
        ) is None:  # as some proxies answer: nothing is known by it
            return
        # That second may be nearly over: up to one less is none.
        ahead = self._clock.time() - theirs
        self.ahead, self.whose = (ahead if ahead < 0 else max(0.0, ahead - 1.0)), whose


def judge(dates: Dates, scheme: str, *, taken: bool) -> Finding:
    """
    Args:
        scheme: of the store's URL.
        taken: whether the store has answered this machine, by this clock, without a refusal.
    """
    if dates.ahead is None:
        return ok("clock", "not compared: nobody has answered with a date", skew_seconds=None)
    off = abs(dates.ahead)
    side = "ahead of" if dates.ahead > 0 else "behind"
    facts: dict[str, Any] = {"skew_seconds": round(dates.ahead, 1)}
    if off <= NOTHING:
        return ok("clock", f"within {NOTHING:g} s of {dates.whose}'s", **facts)
    found = f"{off:.0f} s {side} {dates.whose}'s"
    tokens = f"new tokens may be refused from {TOKENS:g} s on"
    signatures = f"signatures are refused from {SIGNATURES:g} s on"
    if scheme == "file":
        return warning("clock", f"{found}: nothing is signed for a folder", _SET_IT, **facts)
    if scheme not in _SIGNED:
        return warning("clock", f"{found}: {tokens}", _SET_IT, **facts)
    if off < SIGNATURES:
        return warning("clock", f"{found}: {tokens}, {signatures}", _SET_IT, **facts)
    if taken:  # an S3 of somebody's that does not look at the time, a token for Azure
        return warning("clock", f"{found}: this store takes it all the same; {tokens}", _SET_IT, **facts)
    return fails("clock", f"{found}: {signatures}", _SET_IT, **facts)
