"""Header of an object: each object is a safetensors file, so any tool can open it.

A header depends on names, dtypes and sizes alone, never on values. The planner makes it before the notice, so only
bytes move after the notice. Spaces pad the header to a multiple of 8, as the format allows, so that the first
tensor is aligned. The planner orders pieces by falling item size, so all others are aligned too. (The format
forbids holes between tensors.)
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any

from ....providers.errors import CheckpointError
from .crc import crc32
from .dtypes import safetensors_form
from .manifest import RankManifest, own_name

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


# --- the check of a manifest's headers ---
#
# Check of a manifest against itself, without any request and without the registered objects.
#
# Damage and a wrong registration look alike from outside: a tensor of another shape, or an unknown name. This check
# tells them apart by two rules. First, a header follows from the names, dtypes and boxes of its pieces
# (`header`), and the manifest holds its CRC. Second, each tensor that a rank lists has a place in
# that rank's state. A manifest that was changed later contradicts one of these rules. A sound checkpoint of another
# script contradicts only the registration.
#
# Both rules are part of the format. A writer that makes other headers, or lists a tensor that its state does not
# name, needs a new format number.

#: Types of encoded values that name a tensor.
_TENSORS = frozenset({"tensor", "parameter", "numpy.ndarray"})


def check_headers(manifest: RankManifest, objects: Collection[int] | None = None) -> None:
    """Check that the tensors of a manifest give the headers of its own objects.

    Objects of earlier checkpoints are skipped, because they may hold tensors that this manifest does not refer to.

    Args:
        manifest: the manifest of one rank.
        objects: indices of the objects to check; None for all.

    Raises:
        CheckpointError: an object holds other tensors than the manifest says.
    """
    wanted = range(len(manifest.objects)) if objects is None else objects
    pieces_of: dict[int, list[tuple[Any, ...]]] = {
        index: [] for index in wanted if not manifest.objects[index].checkpoint
    }
    for name, dtype, shape, chunks, stored in manifest.tensors:
        for offsets, sizes, index, start, end, _ in chunks:
            if index in pieces_of:
                pieces_of[index].append((start, end, name, stored or dtype, shape, offsets, sizes))
    for index, pieces in pieces_of.items():
        entry = manifest.objects[index]
        pieces.sort()
        called = labels((name, shape, offsets, sizes) for _, _, name, _, shape, offsets, sizes in pieces)
        made = header(
            (label, dtype, sizes, end - start)
            for label, (start, end, _, dtype, _, _, sizes) in zip(called, pieces, strict=True)
        )
        ends = [entry.header, *(end for _, end, *_ in pieces)]
        starts = [*(start for start, *_ in pieces), entry.size]
        if (len(made), crc32(made)) != (entry.header, entry.header_crc32) or starts != ends:
            raise CheckpointError(
                f"{manifest.object_key(index)} has a header that does not match the tensors in its manifest"
            )


def check_names(manifest: RankManifest) -> None:
    """Check that the state names exactly the tensors that the manifest lists, each under its own registered name.

    An optimizer that was registered twice names its tensors by its first name only, both times.

    Raises:
        CheckpointError: the state lacks a tensor, or names one in the wrong place.
    """
    if manifest.level != "full":
        return  # the lower levels omit parts of the state
    own: dict[str, set[str]] = {part: set() for part in manifest.state}
    for tensor in manifest.tensors:
        part = _owner(tensor.name, own)
        if part is None:
            raise CheckpointError(f"its state has no place for tensor {tensor.name!r}")
        own[part].add(tensor.name)
    for part, tree in manifest.state.items():
        named = set(_named(tree))
        lost, strange = own[part] - named, named - own[part]
        if (
            lost
            and strange
            and {_after(each, own) for each in lost} == {_after(each, own) for each in strange}
        ):
            continue
        if lost:
            raise CheckpointError(f"its state of {part!r} has another value in place of tensor {min(lost)!r}")
        if strange:
            raise CheckpointError(
                f"its state of {part!r} names tensor {min(strange)!r}, which is not one of its own"
            )


def _owner(name: str, parts: Collection[str]) -> str | None:
    """Return the registered name with which a tensor's name begins."""
    name = own_name(name)
    ends = [at for at, letter in enumerate(name) if letter in "/#"]
    return next((name[:end] for end in [len(name), *reversed(ends)] if name[:end] in parts), None)


def _after(name: str, parts: Collection[str]) -> str:
    """Return the rest of a tensor's name after its registered name."""
    return own_name(name).removeprefix(_owner(name, parts) or "")


def _named(tree: Any) -> Iterator[str]:
    """Yield the names of the tensors in an encoded value."""
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            word, name = value.get("$"), value.get("name")
            if isinstance(word, str) and word in _TENSORS and isinstance(name, str):
                yield name
            else:
                waiting += value.values()
