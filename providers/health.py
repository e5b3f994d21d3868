"""The health of a source, as a value: a source that cannot see must never look safe.

"No notice" is good news only from a source that is SEEING. A 401, a hop limit, a missing key that must exist, a foreign
server: each is a state of its own, with a text for the user and the next step.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

#: Why a source does not see. The set is closed: it labels metrics and alerts.
Reason = Literal[
    "",
    "starting",  # no answer yet
    "unreachable",  # connection refused, no route, reset
    "timeout",  # no answer, or one that trickles for too long
    "unauthorized",  # 401 even with a fresh token
    "forbidden",  # 403: the metadata service is switched off
    "hop-limit",  # the token PUT hangs although the service answers a GET
    "missing-key",  # 404 for a key that must exist
    "throttled",  # 429
    "server-error",  # 5xx
    "garbage",  # an answer that this service never gives
    "wrong-server",  # another server answers: captive portal, proxy, another cloud
    "overdue",  # a poll does not end
    "unguarded",  # the agent that polls for this process does not answer
]


class Sight(StrEnum):
    SEEING = "seeing"
    BLIND = "blind"
    WRONG_SERVER = "wrong server"


@dataclass(frozen=True, slots=True)
class Health:
    """How well a source sees, why, and what to do about it."""

    sight: Sight
    reason: Reason = ""
    #: The event in one line: "PUT /latest/api/token: no answer in 2 s".
    detail: str = ""
    #: The next step for the user: "raise the hop limit: aws ec2 modify-instance-metadata-options …".
    advice: str = ""
    #: The HTTP status of an answer that was not the expected one; 0 if there was no answer.
    code: int = 0

    @property
    def seeing(self) -> bool:
        return self.sight is Sight.SEEING


SEEING = Health(Sight.SEEING)
STARTING = Health(Sight.BLIND, "starting", "no answer yet")


def blind(reason: Reason, detail: str, advice: str = "") -> Health:
    return Health(Sight.BLIND, reason, detail, advice)


def wrong_server(detail: str, advice: str = "") -> Health:
    return Health(Sight.WRONG_SERVER, "wrong-server", detail, advice)
