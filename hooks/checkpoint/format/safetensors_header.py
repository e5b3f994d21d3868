"""Header of an object: each object is a safetensors file, so any tool can open it.

A header depends on names, dtypes and sizes alone, never on values. The planner makes it before the notice, so only
bytes move after the notice. Spaces pad the header to a multiple of 8, as the format allows, so that the first
tensor is aligned. The planner orders pieces by falling item size, so all others are aligned too. (The format
forbids holes between tensors.)
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from json.encoder import encode_basestring_ascii

from .dtypes import safetensors_form

#: The only name that safetensors reserves.
_RESERVED = "__metadata__"
ALIGNMENT = 8
_LENGTH = struct.Struct("<Q")


def header(
    pieces: Iterable[tuple[str, str, Sequence[int], int]], notes: Mapping[str, str] | None = None
) -> bytes:
    """Return the first bytes of an object that holds these pieces, adjacent and in this order.

    Args:
        pieces: each is (label, torch dtype of the stored bytes, sizes, number of bytes); labels are unique.
        notes: text for people and for other tools.
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
    """Return the largest number of bytes that one piece adds to a header."""
    # {"dtype":"F8_E4M3","shape":[…],"data_offsets":[…,…]} and the quotes, colon and comma around: 80, numbers aside.
    return 80 + len(encode_basestring_ascii(label)) + 20 * (dims + 2)


#: Bytes of the length field, the braces, and the padding.
HEADER_ROOM = _LENGTH.size + 2 + ALIGNMENT


def labels(
    pieces: Iterable[tuple[str, Sequence[int], Sequence[int], Sequence[int]]],
) -> list[str]:
    """Return the labels of an object's pieces, in their order: each piece is (name, shape, offsets, sizes).

    Labels are unique within the object, even if a tensor is named like a part of another tensor.
    """
    taken: dict[str, None] = {}
    for name, shape, offsets, sizes in pieces:
        one = label(name, shape, offsets, sizes)
        while one in taken:
            one += "'"
        taken[one] = None
    return list(taken)


def label(name: str, shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]) -> str:
    """Return the label of a piece inside its object: the name of the tensor, and the offsets if it is a part."""
    if tuple(sizes) != tuple(shape):
        name = f"{name}@{','.join(map(str, offsets))}"
    return f"{name}@" if name == _RESERVED else name
