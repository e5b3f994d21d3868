"""One walk through values: what each of them holds, under which keys."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ...checkpoint.format.values.encoder import short
from ...checkpoint.format.values.placeholders import SavedObject
from .objects import saved_object

#: Values that nothing can change, and that hold nothing.
ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size})

#: Keys on the way from a registered value to one that it holds.
Way = tuple[Any, ...]


def children(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return what a value holds, each under its key; nothing for a value that is no container."""
    if type(value) in ATOMS or isinstance(value, torch.Tensor):
        return ()
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return enumerate(value)
    found = value if isinstance(value, SavedObject) else saved_object(value)
    return () if found is None else children(found.value)


def walk(value: Any, way: Way = ()) -> Iterator[tuple[Way, Any]]:
    """Yield a value and all that it holds, in order, each with its keys. A circle ends in a `RecursionError`."""
    yield way, value
    for key, each in children(value):
        yield from walk(each, (*way, key))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor inside a value, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for _, each in children(value):
            if type(each) not in ATOMS:
                yield from tensors_in(each)


def place(name: str, way: Iterable[Any]) -> str:
    """Return a value's place as messages show it, such as "notes.ema[0]"."""
    return name + "".join(
        f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{short(key)}]" for key in way
    )
