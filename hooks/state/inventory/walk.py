"""One walk through values: what each of them holds, under which keys."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from ...checkpoint.format.values.encoder import short
from ...checkpoint.format.values.placeholders import SavedObject
from .objects import saved_object

#: Values that nothing can change, and that hold nothing.
ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size})

#: Values that hold nothing, and are themselves in many forms: what `is_plain` takes.
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
_PLAIN_OR_HOLDER = _PLAIN | {dict, list, tuple}

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


def is_plain(value: Any) -> bool:
    """Return whether a value is made of numbers, texts, dicts, lists and tuples alone: a million of them are then handled at once.

    A circle ends in a `RecursionError`.
    """
    kind = type(value)
    if kind is dict:
        if not _PLAIN.issuperset(map(type, value)):
            return False
        value = value.values()
    elif kind is not list and kind is not tuple:
        return kind in _PLAIN
    if _PLAIN.issuperset(map(type, value)):
        return True
    return _PLAIN_OR_HOLDER.issuperset(map(type, value)) and all(map(is_plain, value))


def walk(value: Any, way: Way = ()) -> Iterator[tuple[Way, Any]]:
    """Yield a value and all that it holds, in order, each with its keys. A circle ends in a `RecursionError`."""
    yield way, value
    for key, each in children(value):
        yield from walk(each, (*way, key))


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor inside a value, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif not is_plain(value):
        for _, each in children(value):
            if type(each) not in ATOMS:
                yield from tensors_in(each)


def reach(
    root: object,
    children: Callable[[Any], Iterable[tuple[str, Any]]],
    enters: Callable[[Any], bool],
    *,
    depth: int,
    most: int,
    known: Iterable[int] = (),
) -> Iterator[tuple[str, Any]]:
    """Yield each object that any object holds, nearest first and once, with the steps to it.

    Args:
        root: the object.
        children: returns what an object holds, each with the step to it.
        enters: returns whether the search goes on in an object.
        depth: the most steps.
        most: the most objects.
        known: ids of objects that the search leaves out.
    """
    queue: deque[tuple[str, Any, int]] = deque([("", root, 1)])
    seen = {id(root), *known}
    while queue and len(seen) <= most:
        path, owner, steps = queue.popleft()
        for step, value in children(owner):
            if type(value) in ATOMS or id(value) in seen:
                continue
            seen.add(id(value))
            yield path + step, value
            if steps < depth and enters(value):
                queue.append((path + step, value, steps + 1))


def place(name: str, way: Iterable[Any]) -> str:
    """Return a value's place as messages show it, such as "notes.ema[0]"."""
    return name + "".join(
        f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{short(key)}]" for key in way
    )
