"""Events: the entries of the job's log, by which one rank informs all others. Each is a value that crosses as JSON."""

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
    """A machine of this job has a notice, or a drill."""

    id: str
    #: The kind of notice, as the agent names it.
    kind: str
    #: The cloud or signal that the notice came from, as the agent names it.
    source: str
    #: Seconds until the machine may be gone, at the time of this event.
    seconds_left: float
    machine: str
    #: Seconds of the notice's whole warning.
    window: float
    drill: bool = False
    #: In the second store's log: the number that this entry had in the first one. 0: it is called here for the first time.
    was: int = 0
    #: The number of the newest save that the sender has ended. 0: none.
    ended: int = 0


@dataclass(frozen=True, slots=True)
class WithdrawnEvent:
    """A notice is void, or its drill is over."""

    id: str
    #: As for `NoticeEvent`.
    was: int = 0


@dataclass(frozen=True, slots=True)
class BackgroundEvent:
    """A background checkpoint is due."""

    why: str = ""
    #: Number of events that the sender had received before. The channel fills it in.
    heard: int | None = None


@dataclass(frozen=True, slots=True)
class ManualEvent:
    """The script saves by hand at this step."""

    step: int


@dataclass(frozen=True, slots=True)
class BoundaryEvent:
    """The sender's state moved while its saver read it for `epoch`: all ranks save again, at a boundary."""

    epoch: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """The save of this rank for `epoch` has failed: its part will never be in the store."""

    #: 0: of no call. This rank's values may be wrong, so no rank saves them at an error that follows from this one's.
    epoch: int
    rank: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class DamagedEvent:
    """A checkpoint of this run cannot be restored. No rank counts on it any more."""

    checkpoint: str
    why: str = ""
    #: The keys of its damaged objects (`text.key_list`).
    objects: str = ""


@dataclass(frozen=True, slots=True)
class CarriedEvent:
    """The job state by the first store's log, which the sender has left or leaves: an entry of the second store's log."""

    #: Number of entries that the sender has read in the first store.
    heard: int
    #: The notices that stand after them, with the seconds that are left now.
    notices: tuple[NoticeEvent, ...] = ()
    #: The save that counts after them: its number, cause and kind. 0: there is none.
    epoch: int = 0
    cause: str = ""
    boundary: bool = False


@dataclass(frozen=True, slots=True)
class RevoteEvent:
    """All ranks vote again on the save of `epoch`: its votes are lost to a rank, or one of its ranks is."""

    epoch: int


@dataclass(frozen=True, slots=True)
class UnknownEvent:
    """An entry that this version cannot read. Nothing is saved for it."""

    why: str


LogEvent = (
    NoticeEvent
    | WithdrawnEvent
    | BackgroundEvent
    | ManualEvent
    | BoundaryEvent
    | FailedEvent
    | DamagedEvent
    | CarriedEvent
    | RevoteEvent
    | UnknownEvent
)

#: Event classes by their name on the wire.
_KINDS: dict[str, type[LogEvent]] = {
    "notice": NoticeEvent,
    "withdrawn": WithdrawnEvent,
    "background": BackgroundEvent,
    "manual": ManualEvent,
    "at-boundary": BoundaryEvent,
    "failed": FailedEvent,
    "damaged": DamagedEvent,
    "carried": CarriedEvent,
    "revote": RevoteEvent,
}
_WORDS = {cls: word for word, cls in _KINDS.items()}


def encode(call: LogEvent, rank: int, number: int) -> str:
    """Return the entry for the log. No two entries have the same text, because a rank must recognise its own.

    Args:
        call: the event.
        rank: the sender.
        number: number of this event among the sender's own.
    """
    return typed_json.encode(
        {"call": _WORDS[type(call)], "rank": rank, "number": number, **dataclasses.asdict(call)}
    )


def decode(raw: bytes | str) -> LogEvent:
    """Return the event of an entry. An entry that cannot be read is an event too, because its place in the log is taken."""
    try:
        return _decode(typed_json.decode(raw))
    except ProtocolError as error:
        return UnknownEvent(str(error))


def _decode(body: dict[str, Any]) -> LogEvent:
    name = body.get("call")
    cls = _KINDS.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ProtocolError(f"call {str(name)[:40]!r} is unknown to this version")
    if cls is CarriedEvent:
        notices = body.get("notices")
        if not isinstance(notices, list) or not all(isinstance(each, dict) for each in notices):
            raise ProtocolError(f"notices must be a list of objects, not {str(notices)[:40]!r}")
        body = {**body, "notices": tuple(typed_json.build(NoticeEvent, each) for each in notices)}
    return typed_json.build(cls, body)
