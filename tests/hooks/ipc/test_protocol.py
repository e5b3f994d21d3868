"""The socket protocol without a socket: any bytes, in any pieces, from either side."""

from __future__ import annotations

import dataclasses
import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotguard.hooks.ipc import protocol
from spotguard.hooks.ipc.messages import TYPES
from spotguard.hooks.ipc.protocol import (
    MAX_FRAME,
    VERSION,
    Answer,
    Ask,
    Committed,
    Delivered,
    Foreign,
    Message,
    Peer,
    Position,
    Register,
    Role,
    Welcome,
    encode,
)
from spotguard.providers.errors import ProtocolError
from spotguard.providers.notice import NoticeKind
from tests.cases import cases

WORDS = st.text(max_size=40)
NUMBERS = st.integers(-(2**53), 2**53)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | FLOATS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "str": WORDS,
    "int": NUMBERS,
    "float": FLOATS,
    "bool": st.booleans(),
    "dict[str, Any]": st.dictionaries(WORDS, JSON, max_size=4),
}


def messages(cls: type[Message]) -> st.SearchStrategy[Message]:
    fields = {f.name: FIELDS[str(f.type)] for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    return st.builds(cls, **(fields | {"protocol": st.just(VERSION)} if "protocol" in fields else fields))


ANY_MESSAGE = st.sampled_from(sorted(TYPES)).flatmap(lambda word: messages(TYPES[word]))

#: From whom each message may come first.
FIRST = {
    kind: role
    for (role, kind), _ in sorted(protocol._TABLE.items(), key=lambda item: item[0][0].value, reverse=True)
}


def frame(body: object) -> bytes:
    data = json.dumps(body).encode()
    return struct.pack(">I", len(data)) + data


def outcome(peer: Peer, pieces: list[bytes]) -> tuple[list[Message], str | None]:
    """What came out of the pieces: the messages, and the error that ended it."""
    heard: list[Message] = []
    for piece in pieces:
        try:
            heard += peer.feed(piece)
        except ProtocolError as error:
            return heard, str(error)
    return heard, None


@given(ANY_MESSAGE)
def test_every_message_comes_out_as_it_went_in(message: Message) -> None:
    """Value and type, for every type there is."""
    (back,) = Peer(FIRST[type(message)]).feed(encode(message))
    assert back == message
    assert type(back) is type(message)


def test_every_message_has_somebody_who_may_say_it() -> None:
    """A type that no role may say would be dead weight on the wire."""
    assert set(FIRST) == {*TYPES.values(), Foreign}


@given(
    st.lists(messages(Delivered) | messages(Committed) | messages(Position), max_size=5),
    st.binary(max_size=40),
)
@settings(max_examples=50)
def test_byte_by_byte_is_as_one_chunk(said: list[Message], garbage: bytes) -> None:
    """The same messages and the same end; before an offence, byte by byte can only have heard more."""
    data = b"".join(encode(m) for m in (Register(1, "r", "n"), *said)) + garbage
    whole, whole_error = outcome(Peer(Role.NEW), [data])
    single, single_error = outcome(Peer(Role.NEW), [bytes([b]) for b in data])
    assert single_error == whole_error
    assert single[: 1 + len(said)] == [Register(1, "r", "n"), *said]
    assert whole == (single if whole_error is None else [])


@pytest.mark.parametrize("word", ["register", "ask", "watch"])
@pytest.mark.parametrize("version", [VERSION + 1, 0, "1", None])
def test_nothing_is_read_from_a_first_message_of_another_version_but_that(word: str, version: object) -> None:
    """Its fields may be others, and the peer is answered with both numbers. Development versions had theirs under another name."""
    peer = Peer(Role.NEW)
    said = {"version": 1} if version is None else {"protocol": version}
    assert peer.feed(frame({"type": word, "pid": "of another kind", **said})) == [
        Foreign("another" if version is None else str(version))
    ]
    assert peer.role is Role.GONE


@cases("word", sorted(TYPES))
def test_a_message_without_one_of_its_fields_is_refused(word: str) -> None:
    """Both ends have one version, so no field is optional."""
    values = {"str": "x", "int": 1, "float": 1.0, "bool": True, "dict[str, Any]": {}}
    fields = {f.name: values[str(f.type)] for f in dataclasses.fields(TYPES[word])}  # type: ignore[arg-type]
    role = next(role for role, cls in protocol._TABLE if cls is TYPES[word])
    for name in fields.keys() - {"protocol"}:
        left = {key: value for key, value in fields.items() if key != name}
        assert outcome(Peer(role), [frame({"type": word, **left})]) == ([], f"{word} lacks {name}")


@given(st.sampled_from(list(Role)), st.lists(st.binary(max_size=60), max_size=8))
def test_any_bytes_give_messages_or_a_protocol_error(role: Role, pieces: list[bytes]) -> None:
    """And never anything else; a peer that has broken the protocol stays broken."""
    peer = Peer(role)
    _, error = outcome(peer, pieces)
    if error is not None:
        with pytest.raises(ProtocolError):
            peer.feed(encode(Delivered("n", 1.0)))


@given(
    st.sampled_from(list(Role)),
    st.sampled_from(sorted(TYPES)),
    st.dictionaries(WORDS, JSON, max_size=5),
    st.data(),
)
def test_any_object_gives_a_message_or_a_protocol_error(
    role: Role, word: str, body: dict[str, Any], data: st.DataObject
) -> None:
    """Right names with wrong values, unknown names, missing names."""
    fields = [f.name for f in dataclasses.fields(TYPES[word])]  # type: ignore[arg-type]
    body |= {name: data.draw(JSON) for name in fields if data.draw(st.booleans())}
    body["type"] = word
    outcome(Peer(role), [frame(body)])


@cases("role", list(Role))
@cases("word", sorted(TYPES))
def test_a_message_that_the_table_lacks_is_out_of_order(role: Role, word: str) -> None:
    """Every pair of a role and a message: a place in the table, or the end of that peer."""
    fields = dataclasses.fields(TYPES[word])  # type: ignore[arg-type]
    values = {"str": "x", "int": 1, "float": 1.0, "bool": True, "dict[str, Any]": {}}
    message = TYPES[word](**{f.name: values[str(f.type)] for f in fields})
    allowed = (role, TYPES[word]) in protocol._TABLE
    heard, error = outcome(Peer(role), [encode(message)])
    assert (heard == [message]) is allowed
    assert (error is not None and "out of order" in error) is not allowed


DELIVERED = {"type": "delivered", "id": "n", "monotonic": 1.0, "kind": "", "source": "", "seconds_left": 0.0}
BAD: dict[str, object] = {
    "no object": [1],
    "no type": {},
    "an unknown type": {"type": "execute"},
    "a type that is no word": {"type": ["register"]},
    "a field missing": {"type": "delivered", "id": "n"},
    "a text for a number": DELIVERED | {"monotonic": "now"},
    "true for a number": DELIVERED | {"monotonic": True},
    "a number for a text": DELIVERED | {"id": 7},
    "null": DELIVERED | {"id": None},
    "a fraction for a count": {"type": "failed", "id": "n", "reason": "r", "last_step": 1.5},
    "a count beyond all counting": {"type": "failed", "id": "n", "reason": "r", "last_step": 2**70},
    "seconds beyond a float": DELIVERED | {"monotonic": 10**400},
}


@pytest.mark.parametrize("what", BAD)
def test_a_wrong_message_is_a_protocol_error(what: str) -> None:
    """One line that says what is wrong."""
    with pytest.raises(ProtocolError) as caught:
        Peer(Role.HOOK).feed(frame(BAD[what]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999"])
def test_seconds_are_finite(number: bytes) -> None:
    """A deadline of infinity would never come."""
    body = b'{"type":"delivered","id":"n","monotonic":' + number + b"}"
    with pytest.raises(ProtocolError):
        Peer(Role.HOOK).feed(struct.pack(">I", len(body)) + body)


def test_a_whole_number_is_welcome_where_a_fraction_may_stand() -> None:
    """JSON knows one kind of number."""
    (told,) = Peer(Role.HOOK).feed(frame(DELIVERED | {"monotonic": 3}))
    assert told == Delivered("n", 3.0)


def test_unknown_fields_are_skipped() -> None:
    (told,) = Peer(Role.HOOK).feed(frame(DELIVERED | {"mood": "fine"}))
    assert told == Delivered("n", 1.0)


def test_a_frame_that_is_too_large_is_refused_by_its_header() -> None:
    """Before one byte of it is kept."""
    peer = Peer(Role.NEW)
    with pytest.raises(ProtocolError, match="1073741824 bytes"):
        peer.feed(struct.pack(">I", 1 << 30))
    assert not peer.mid_frame


def test_a_message_that_no_frame_holds_is_not_sent() -> None:
    """Too large, or not JSON."""
    with pytest.raises(ProtocolError, match="a frame holds"):
        encode(Answer({"x": "y" * MAX_FRAME}))
    with pytest.raises(ProtocolError, match="as JSON"):
        encode(Ask("drill", window=float("inf")))
    with pytest.raises(ProtocolError, match="as JSON"):
        encode(Answer({"x": object()}))


def test_a_peer_owes_the_rest_of_a_frame_it_began() -> None:
    """Silence is a stall only then."""
    peer, data = Peer(Role.AGENT_NEW), encode(Welcome(1, 2))
    assert not peer.mid_frame
    peer.feed(data[:3])
    assert peer.mid_frame
    peer.feed(data[3:])
    assert not peer.mid_frame


def test_a_notice_of_another_machine_is_called_alike_on_both_sides() -> None:
    """The agent has the kind from the providers' room, which the training process does not load."""
    assert protocol.PEER == NoticeKind.PEER
