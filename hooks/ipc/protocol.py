"""Socket protocol without a socket: messages, frames, and which peer may send which message when.

A frame is a 4-byte big-endian length and that many bytes of UTF-8 JSON: one object with a `type`. Bytes go in,
messages come out (`Peer.feed`). Nothing here reads, writes, waits or knows the time, so tests run both ends byte by
byte. Only JSON crosses the socket: an impostor can send wrong messages, never code.

Both ends have one version: the agent refuses a peer whose first message has another number (`Foreign`). An unknown type, a
missing field or a wrong type is a `ProtocolError`, and the receiver drops the peer. The parser skips unknown fields.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from enum import Enum, auto
from typing import Any

from ...providers.errors import ProtocolError
from . import typed_json
from .agent_messages import *
from .messages import *

#: Largest frame in bytes. A status answer for hundreds of sessions fits. A header that announces 1 GiB is refused
#: unread.
MAX_FRAME = 256 * 1024

_HEADER = struct.Struct(">I")


def encode(message: Message) -> bytes:
    """Return the message as one frame.

    Raises:
        ProtocolError: the message is larger than `MAX_FRAME`, or holds a value that JSON cannot represent.
    """
    body: dict[str, Any] = {"type": message.type}
    for f in dataclasses.fields(message):  # type: ignore[arg-type]
        body[f.name] = getattr(message, f.name)
    try:
        data = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"{message.type} cannot be sent as JSON: {error}") from error
    if len(data) > MAX_FRAME:
        raise ProtocolError(f"{message.type} is {len(data)} bytes, but a frame holds at most {MAX_FRAME}")
    return _HEADER.pack(len(data)) + data


def _decode(data: bytes) -> Message:
    body = typed_json.decode(data, f"a frame of {len(data)} bytes")
    word = body.get("type")
    cls = TYPES.get(word) if isinstance(word, str) else None
    if cls is None:
        raise ProtocolError(f"unknown message type {str(word)[:40]!r}")
    if cls in _FIRST and (number := body.get("protocol")) != VERSION:
        return Foreign("another" if number is None else str(number)[:40])
    return typed_json.build(cls, body, cls.type)


class Role(Enum):
    """Role that the *other* side of a connection has taken by its messages."""

    NEW = auto()  # connected, no message yet
    HOOK = auto()  # a training process
    ASKER = auto()  # a person's `status` or `drill`: sends one question, then only listens
    WATCHER = auto()  # another agent that lets this one poll: only listens
    AGENT_NEW = auto()  # the agent, before its Welcome (seen from a training process)
    AGENT = auto()
    ANSWERER = auto()  # the agent, seen from `status`, `drill` or a watching agent
    GONE = auto()  # sent `Bye` or was refused: its further messages do not count


#: First messages, which have the version of their sender.
_FIRST = (Register, Ask, Watch, Unattached)
#: Role after a message, by the role before it. A pair outside this table is a ProtocolError: the table is the whole
#: state machine.
_TABLE: dict[tuple[Role, type[Message]], Role] = {
    (Role.NEW, Register): Role.HOOK,
    (Role.NEW, Ask): Role.ASKER,
    (Role.NEW, Watch): Role.WATCHER,
    (Role.NEW, Foreign): Role.GONE,
    (Role.NEW, Unattached): Role.GONE,
    (Role.HOOK, Delivered): Role.HOOK,
    (Role.HOOK, Progress): Role.HOOK,
    (Role.HOOK, Committed): Role.HOOK,
    (Role.HOOK, Failed): Role.HOOK,
    (Role.HOOK, Position): Role.HOOK,
    (Role.HOOK, CheckpointDamaged): Role.HOOK,
    (Role.HOOK, TrainingFailed): Role.HOOK,
    (Role.HOOK, PeerPreempted): Role.HOOK,
    (Role.HOOK, PeerCancelled): Role.HOOK,
    (Role.HOOK, WatchMachines): Role.HOOK,
    (Role.HOOK, Bye): Role.GONE,
    (Role.AGENT_NEW, Welcome): Role.AGENT,
    (Role.AGENT_NEW, Refused): Role.GONE,
    (Role.AGENT, Preempt): Role.AGENT,
    (Role.AGENT, CheckpointNow): Role.AGENT,
    (Role.AGENT, CheckpointDamaged): Role.AGENT,
    (Role.AGENT, Withdrawn): Role.AGENT,
    (Role.AGENT, Resume): Role.AGENT,
    (Role.AGENT, Leave): Role.AGENT,
    (Role.ANSWERER, Answer): Role.ANSWERER,
    (Role.ANSWERER, Refused): Role.GONE,
    (Role.ANSWERER, Watched): Role.ANSWERER,
    (Role.ANSWERER, FeedNotice): Role.ANSWERER,
    (Role.ANSWERER, FeedNoticeGone): Role.ANSWERER,
    (Role.ANSWERER, FeedHealth): Role.ANSWERER,
}


class Peer:
    """One end's view of the other: `feed` takes received bytes and returns the complete messages.

    After a `ProtocolError` the peer is never trusted again: every later `feed` raises too.
    """

    def __init__(self, role: Role) -> None:
        self.role = role
        self._buffer = bytearray()
        self._broken: ProtocolError | None = None

    @property
    def mid_frame(self) -> bool:
        """Whether the rest of a frame is outstanding: silence is then a stall, not idleness."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[Message]:
        """Take received bytes, in pieces of any size, and return the messages that are complete.

        Raises:
            ProtocolError: the peer broke the protocol; drop the connection. Complete messages before the offence in
                the same piece are lost, because such a peer is not trusted in anything.
        """
        if self._broken is not None:
            raise self._broken
        try:
            return self._feed(data)
        except ProtocolError as error:
            self._broken = error
            self._buffer.clear()
            raise

    def _feed(self, data: bytes) -> list[Message]:
        self._buffer += data
        messages: list[Message] = []
        while len(self._buffer) >= _HEADER.size:
            (size,) = _HEADER.unpack_from(self._buffer)
            if size > MAX_FRAME:
                raise ProtocolError(f"a frame of {size} bytes was announced, but the limit is {MAX_FRAME}")
            end = _HEADER.size + size
            if len(self._buffer) < end:
                break
            message = _decode(bytes(self._buffer[_HEADER.size : end]))
            del self._buffer[:end]
            after = _TABLE.get((self.role, type(message)))
            if after is None:
                raise ProtocolError(f"{message.type} out of order: the peer is {self.role.name.lower()}")
            self.role = after
            messages.append(message)
        return messages
