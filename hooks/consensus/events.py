"""What one rank tells all others: the entries of the job's log of calls. Each is a value that crosses as JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ...providers.errors import ProtocolError
from ..ipc import typed_json

#: Increase this number when a value on the wire, or the order of messages, changes meaning. Ranks of different
#: versions refuse each other when they meet.
VERSION = 1


@dataclass(frozen=True, slots=True)
class NoticeEvent:
    """A machine of this job was noticed, or drills."""

    id: str
    #: What the agent says of it: the kind of notice, and which cloud or signal it came from.
    kind: str
    source: str
    #: Until that machine may be gone, when this was said; and the whole warning of such a notice.
    seconds_left: float
    machine: str
    window: float
    drill: bool = False


@dataclass(frozen=True, slots=True)
class WithdrawnEvent:
    """A notice is void, or its drill is over."""

    id: str


@dataclass(frozen=True, slots=True)
class BackgroundEvent:
    """It is time for a checkpoint beside training."""

    why: str = ""
    #: How many calls whoever says so had heard by then. (The channel fills it in.)
    heard: int | None = None


@dataclass(frozen=True, slots=True)
class ManualEvent:
    """The script saves by hand, at this step."""

    step: int


@dataclass(frozen=True, slots=True)
class BoundaryEvent:
    """The state of the rank that says so moved while it was read for `epoch`: all save again, at a boundary."""

    epoch: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """What this rank was to save for `epoch` will never be there."""

    epoch: int
    rank: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An entry that this version cannot read. Nothing is saved for it."""

    why: str


LogEvent = (
    NoticeEvent | WithdrawnEvent | BackgroundEvent | ManualEvent | BoundaryEvent | FailedEvent | UnknownEvent
)

#: Word on the wire -> call.
_KINDS: dict[str, type[LogEvent]] = {
    "notice": NoticeEvent,
    "withdrawn": WithdrawnEvent,
    "background": BackgroundEvent,
    "manual": ManualEvent,
    "at-boundary": BoundaryEvent,
    "failed": FailedEvent,
}
_WORDS = {cls: word for word, cls in _KINDS.items()}


def encode(call: LogEvent, rank: int, number: int) -> str:
    """The entry for the log. No two entries are the same text, for a rank must know its own again.

    Args:
        rank: who calls.
        number: the how-manieth call of that rank this is.
    """
    return typed_json.encode(
        {"call": _WORDS[type(call)], "rank": rank, "number": number, **dataclasses.asdict(call)}
    )


def decode(raw: bytes | str) -> LogEvent:
    """What an entry says; one that cannot be read is a call too, for its place in the log is taken."""
    try:
        return _decode(typed_json.decode(raw))
    except ProtocolError as error:
        return UnknownEvent(str(error))


def _decode(body: dict[str, Any]) -> LogEvent:
    word = body.get("call")
    cls = _KINDS.get(word) if isinstance(word, str) else None
    if cls is None:
        raise ProtocolError(f"{str(word)[:40]!r} is no call that this version knows")
    return typed_json.build(cls, body)
