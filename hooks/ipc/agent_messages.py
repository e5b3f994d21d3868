"""Messages that an agent exchanges with a person, or with another agent: questions, and the feed of notices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from .messages import VERSION, Message, message


@message("ask")
class Ask(Message):
    """Question of a person. `what` is "status" or "drill"; `window` is the seconds that a drill pretends to have."""

    what: str
    window: float = 30.0
    #: For a drill: run it to the end, as a preemption.
    preempt: bool = False
    protocol: int = VERSION


@message("answer")
class Answer(Message):
    """Answer to `Ask`, as plain JSON. If `last` is False, more answers follow on this connection."""

    body: dict[str, Any] = field(default_factory=dict)
    last: bool = True


@message("watch")
class Watch(Message):
    """First message of a `spotguard run` that lets the machine's service agent poll the sources."""

    pid: int
    protocol: int = VERSION


@dataclass(frozen=True, slots=True)
class Foreign(Message):
    """First message of a peer of another version. Nothing else of it is read, and the agent refuses the peer."""

    type: ClassVar[str] = "foreign"
    version: str


@message("watched")
class Watched(Message):
    """First answer to `Watch`, repeated every few seconds as a sign of life.

    Notices and health of the sources follow it.
    """

    #: Number of sources that the agent polls. With 0 it would never report a notice.
    sources: int
    #: Seconds of warning that the cloud's own service announces; 0 if it announces none.
    window: float = 0.0


@message("notice")
class FeedNotice(Message):
    id: str
    kind: str
    source: str
    seconds_left: float
    window: float
    detail: str
    #: Severity as in `providers.notice.Severity`.
    severity: str


@message("notice-gone")
class FeedNoticeGone(Message):
    id: str


@message("health")
class FeedHealth(Message):
    source: str
    sight: str
    reason: str
    detail: str
    advice: str
    #: Seconds for which the source has had this sight.
    seconds: float
