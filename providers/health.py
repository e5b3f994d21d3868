"""Blind is not safe: what a source can see, as a value.

"No notice" is only good news from a source that is SEEING. A 401, a hop limit, a key that must be there and is
not, a server that is somebody else: each is its own state, with words for a person and what to do about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

#: Why a source does not see. A closed set: metrics and alerts are labelled with it.
Reason = Literal[
    "",
    "starting",  # not one answer yet
    "unreachable",  # connection refused, no route, reset
    "timeout",  # no answer, or one that trickles for too long
    "unauthorized",  # 401 also with a fresh token
    "forbidden",  # 403: the metadata service is switched off
    "hop-limit",  # the token PUT hangs although a GET is answered
    "missing-key",  # 404 where a key must be
    "throttled",  # 429
    "server-error",  # 5xx
    "garbage",  # an answer that is not what this service says
    "wrong-server",  # somebody else answers: captive portal, proxy, another cloud
    "overdue",  # a look does not come to its end
    "unguarded",  # the agent that polls for us does not answer
]


class Sight(StrEnum):
    SEEING = "seeing"
    BLIND = "blind"
    WRONG_SERVER = "wrong server"


@dataclass(frozen=True, slots=True)
class Health:
    """How well a source sees, why, and what to do."""

    sight: Sight
    reason: Reason = ""
    #: What happened, one line: "PUT /latest/api/token: no answer in 2 s".
    detail: str = ""
    #: What a person can do: "raise the hop limit: aws ec2 modify-instance-metadata-options …".
    advice: str = ""
    #: The HTTP status that was answered instead of what was asked for; 0 where none was.
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
