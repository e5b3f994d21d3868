"""Header of an object: each object is a safetensors file, so any tool can open it.

A header depends on names, dtypes and sizes alone, never on values. The planner makes it before the notice, so only
bytes move after the notice. Spaces pad the header to a multiple of 8, as the format allows, so that the first
tensor is aligned. The planner orders pieces by falling item size, so all others are aligned too. (The format
forbids holes between tensors.)
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any

from ....providers.errors import CheckpointError
from .columns import TensorColumns, TensorRun
from .crc import crc32
from .dtypes import safetensors_form
from .manifest import RankManifest

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
    table = [f'"{_RESERVED}":{json.dumps(dict(notes), separators=(",", ":"))}'] if notes else []
    position = 0
    for label, dtype, sizes, nbytes in pieces:
        end = position + nbytes
        table.append(f"{encode_basestring_ascii(label)}:{_form(dtype, tuple(sizes))}{position},{end}]}}")
        position = end
    body = f"{{{','.join(table)}}}".encode("ascii")
    body += b" " * (-len(body) % ALIGNMENT)
    return _LENGTH.pack(len(body)) + body


@lru_cache(4096)
def _form(dtype: str, sizes: tuple[int, ...]) -> str:
    """Return the JSON of a piece up to its two offsets. (`json.dumps` of the whole table takes twice as long.)"""
    word, shape = safetensors_form(dtype, sizes)
    return f'{{"dtype":"{word}","shape":[{",".join(map(str, shape))}],"data_offsets":['


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
        return f"{name}@{','.join(map(str, offsets))}"
    return f"{name}@" if name == _RESERVED else name


# --- the check of a manifest's headers ---
#
# Check of a manifest against itself, without any request and without the registered objects.
#
# Damage and a wrong registration look alike from outside: a tensor of another shape, or an unknown name. This check
# tells them apart by one rule, and `state_check` by another: a header follows from the names, dtypes and boxes of its
# pieces (`header`), and the manifest holds its CRC. A manifest that was changed later contradicts one of the rules. A
# sound checkpoint of another script contradicts only the registration.
#
# The rule is part of the format. A writer that makes other headers needs a new format number.


def check_headers(manifest: RankManifest, objects: Collection[int] | None = None) -> None:
    """Check that the tensors of a manifest give the headers of its own objects, or of some of them, by index.

    Raises:
        CheckpointError: an object holds other tensors than the manifest says.
    """
    for key in wrong_headers(manifest, objects):
        raise CheckpointError(f"{key} {WRONG_HEADER}")


#: The end of the message for an object whose key `wrong_headers` returns.
WRONG_HEADER = "has a header that does not match the tensors in its manifest"


def wrong_headers(manifest: RankManifest, objects: Collection[int] | None = None) -> list[str]:
    """Return the keys of the own objects, or of some of them, by index, that hold other tensors than the manifest says.

    Objects of earlier checkpoints are skipped, because they may hold tensors that this manifest does not refer to.
    """
    wanted = range(len(manifest.objects)) if objects is None else objects
    pieces_of: dict[int, list[tuple[Any, ...]]] = {
        index: [] for index in wanted if not manifest.objects[index].checkpoint
    }
    for run in TensorColumns.of(manifest.tensors).runs:
        _sort_pieces(run, pieces_of)
    wrong = []
    for index, pieces in pieces_of.items():
        entry = manifest.objects[index]
        pieces.sort()
        called = labels([(name, shape, offsets, sizes) for _, _, name, offsets, sizes, shape, _ in pieces])
        made = header(
            [
                (name, piece[6], piece[4], piece[1] - piece[0])
                for name, piece in zip(called, pieces, strict=True)
            ]
        )
        ends = [entry.header, *[piece[1] for piece in pieces]]
        starts = [*[piece[0] for piece in pieces], entry.size]
        if (len(made), crc32(made)) != (entry.header, entry.header_crc32) or starts != ends:
            wrong.append(manifest.object_key(index))
    return wrong


def _sort_pieces(run: TensorRun, pieces_of: Mapping[int, list[tuple[Any, ...]]]) -> None:
    """Add each chunk of these columns to the pieces of its object, if that is wanted."""
    layout, starts, objects = run.layout, run.starts, run.objects
    nbytes, first, place, forms = layout.follows(run.sizes).nbytes, layout.first, layout.place, layout.forms
    columns = zip(forms.names, forms.dtypes, forms.stored, forms.shapes, first, first[1:], strict=False)
    for name, dtype, stored, shape, chunk, end in columns:
        for at in range(chunk, end):
            if (pieces := pieces_of.get(objects[at])) is not None:
                a, b, start = place[at], place[at + 1], starts[at]
                box = tuple(run.offsets[a:b]), tuple(run.sizes[a:b])
                pieces.append((start, start + nbytes[at], name, *box, shape, stored or dtype))
