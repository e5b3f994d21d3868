"""A manifest held against itself, with no request, and without the registered objects.

Damage and a wrong registration look alike from outside: a tensor of another shape, a name that nobody has. They differ
here. A header follows from its pieces' names, dtypes and boxes (`safetensors_header.header`), and a manifest keeps its CRC; and each
tensor that a rank lists has a place in that rank's state. A manifest that was changed later contradicts itself in one of
these. A sound checkpoint of another script contradicts only what is registered.

Both rules are part of the format: a writer that makes other headers, or lists a tensor that its state does not name, needs
a new number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from ....providers.errors import CheckpointError
from .crc import crc32
from .manifest import RankManifest
from .safetensors_header import header, labels

#: As `manifest.private_name` writes it.
_PRIVATE = re.compile(r"\A@\d{5,}/", re.ASCII)
#: Encoded values that name a tensor.
_TENSORS = frozenset({"tensor", "parameter", "numpy.ndarray"})


def check_headers(manifest: RankManifest, objects: Collection[int] | None = None) -> None:
    """See that the tensors of a manifest give the headers that its own objects have.

    An object of an earlier checkpoint may hold tensors that are not referred to: nothing is said of it.

    Args:
        manifest: of one rank.
        objects: indices of the objects to check; None for all.

    Raises:
        CheckpointError: an object holds other tensors than the manifest says.
    """
    wanted = range(len(manifest.objects)) if objects is None else objects
    held: dict[int, list[tuple[Any, ...]]] = {
        index: [] for index in wanted if not manifest.objects[index].checkpoint
    }
    for name, dtype, shape, chunks, stored in manifest.tensors:
        for offsets, sizes, index, start, end, _ in chunks:
            if index in held:
                held[index].append((start, end, name, stored or dtype, shape, offsets, sizes))
    for index, pieces in held.items():
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
                f"{manifest.object_key(index)} has the header of other tensors than its manifest says"
            )


def check_names(manifest: RankManifest) -> None:
    """See that the state of a manifest names the tensors that the manifest lists, each under its own registered name.

    An optimizer that was registered twice names its tensors by its first name only, both times.

    Raises:
        CheckpointError: a tensor has lost its place in the state, or stands in a strange one.
    """
    if manifest.level != "full":
        return  # the lower levels leave parts of the state out
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
            raise CheckpointError(
                f"its state of {part!r} has something else in the place of tensor {min(lost)!r}"
            )
        if strange:
            raise CheckpointError(
                f"its state of {part!r} names tensor {min(strange)!r}, which is not its own"
            )


def _owner(name: str, parts: Collection[str]) -> str | None:
    """The registered name that a tensor's name begins with."""
    name = _PRIVATE.sub("", name)
    ends = [at for at, letter in enumerate(name) if letter in "/#"]
    return next((name[:end] for end in [len(name), *reversed(ends)] if name[:end] in parts), None)


def _after(name: str, parts: Collection[str]) -> str:
    """A tensor's name behind its registered name."""
    return _PRIVATE.sub("", name).removeprefix(_owner(name, parts) or "")


def _named(tree: Any) -> Iterator[str]:
    """The names of the tensors in an encoded value."""
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
