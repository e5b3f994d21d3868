"""The header of an object: each is a safetensors file, so anybody's tool can open a chunk.

A header depends on names, dtypes and sizes alone, never on values: it is made before the notice, when only bytes
move. Padded with spaces to a multiple of 8, as the format allows, so that the first tensor is aligned; the planner
orders pieces by falling item size, and then all are. (Holes between tensors the format forbids.)
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from json.encoder import encode_basestring_ascii

from .dtypes import safetensors_form

#: The one name that safetensors keeps for itself.
_RESERVED = "__metadata__"
ALIGNMENT = 8
_LENGTH = struct.Struct("<Q")


def header(
    pieces: Iterable[tuple[str, str, Sequence[int], int]], notes: Mapping[str, str] | None = None
) -> bytes:
    """The first bytes of an object that holds these pieces, back to back in this order.

    Args:
        pieces: (label, dtype of the bytes as torch says it, sizes, bytes) each; labels are unique.
        notes: for people and for other tools.
    """
    table: dict[str, object] = {_RESERVED: dict(notes)} if notes else {}
    position = 0
    for label, dtype, sizes, nbytes in pieces:
        word, shape = safetensors_form(dtype, sizes)
        table[label] = {"dtype": word, "shape": list(shape), "data_offsets": [position, position + nbytes]}
        position += nbytes
    body = json.dumps(table, separators=(",", ":")).encode("ascii")
    body += b" " * (-len(body) % ALIGNMENT)
    return _LENGTH.pack(len(body)) + body


def header_room(label: str, dims: int) -> int:
    """Bytes that one piece adds to a header at most."""
    # {"dtype":"F8_E4M3","shape":[…],"data_offsets":[…,…]} and the quotes, colon and comma around: 80, numbers aside.
    return 80 + len(encode_basestring_ascii(label)) + 20 * (dims + 2)


#: The length field, the braces, and the padding.
HEADER_ROOM = _LENGTH.size + 2 + ALIGNMENT


def labels(
    pieces: Iterable[tuple[str, Sequence[int], Sequence[int], Sequence[int]]],
) -> list[str]:
    """The labels of an object's pieces, in their order: each piece is (name, shape, offsets, sizes).

    Unique within the object, also if a tensor has the name that a part of another would have.
    """
    found: dict[str, None] = {}
    for name, shape, offsets, sizes in pieces:
        one = label(name, shape, offsets, sizes)
        while one in found:
            one += "'"
        found[one] = None
    return list(found)


def label(name: str, shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]) -> str:
    """What a piece is called inside its object: the tensor's name, and where a part of it begins."""
    if tuple(sizes) != tuple(shape):
        name = f"{name}@{','.join(map(str, offsets))}"
    return f"{name}@" if name == _RESERVED else name
