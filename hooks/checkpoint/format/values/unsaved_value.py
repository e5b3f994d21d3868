"""What stands in a saved tree for a value that no save can hold, and how a restore does without it."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from typing import Any

from .saved_object import SavedObject

#: There is no live value at a place.
_NOTHING = object()


@dataclass(frozen=True, slots=True)
class UnsavedValue:
    """A value in place of one that could not be saved when the checkpoint was made."""

    #: The full name of its type.
    type: str


#: Types of values that may be, or hold, one that was not saved.
_WITH_VALUES = {UnsavedValue, SavedObject, dict, OrderedDict, defaultdict, Counter, list, tuple, deque}


def with_live(saved: Any, live: Any = _NOTHING, *, plain: bool = False) -> Any:
    """Return a decoded tree with the live value at each place whose value was not saved. This takes the containers of `saved`.

    If nothing is there, a dict lacks the key, and a list or a tuple has None.

    Args:
        saved: the tree.
        live: the tree of the live object.
        plain: whether the values of an object stand for it, as for tools that know no such object.
    """
    found = _placed(saved, live, plain)
    return None if found is _NOTHING else found


def _placed(saved: Any, live: Any, plain: bool) -> Any:
    if isinstance(saved, UnsavedValue):
        return live
    if isinstance(saved, SavedObject):
        return _placed(saved.value, _NOTHING, plain) if plain else saved
    if isinstance(saved, dict):
        for key in [*saved]:
            there = live.get(key, _NOTHING) if isinstance(live, dict) else _NOTHING
            saved[key] = _placed(saved[key], there, plain)
            if saved[key] is _NOTHING:
                del saved[key]
    elif isinstance(saved, (list, tuple, deque)) and {*map(type, saved)} & _WITH_VALUES:
        here = live if isinstance(live, (list, tuple, deque)) else ()
        placed = [
            with_live(each, here[at] if at < len(here) else _NOTHING, plain=plain)
            for at, each in enumerate(saved)
        ]
        if isinstance(saved, tuple):
            return type(saved)(placed)
        saved.clear()
        saved.extend(placed)
    return saved
