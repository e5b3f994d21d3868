"""How the values of a saved tree meet the live ones at their places, and how a restore does without those that no save could hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from typing import Any

from .....providers.errors import StateError
from .encoder import encode, type_name
from .placeholders import SavedObject, UnsavedValue

#: There is no live value at a place.
NOTHING: Any = object()
_SEQUENCES = (list, tuple, deque)
#: Values that hold nothing. Most lists are long ones of these.
_PLAIN = {type(None), bool, int, float, complex, str, bytes}


def pairs(saved: Any, live: Any = NOTHING) -> Iterator[tuple[Any, Any, Any]]:
    """Yield what a saved dict or sequence holds: the key, the value, and the live value there, or `NOTHING`."""
    if isinstance(saved, dict):
        known = live if isinstance(live, dict) else {}
        yield from ((key, value, known.get(key, NOTHING)) for key, value in saved.items())
    elif isinstance(saved, _SEQUENCES) and not _PLAIN.issuperset(map(type, saved)):
        here = live if isinstance(live, _SEQUENCES) else ()
        yield from zip(range(len(saved)), saved, chain(here, repeat(NOTHING)), strict=False)


def placed(saved: Any, live: Any, place: Callable[[Any, Any, Any], Any]) -> Any:
    """Return a saved container with the values that belong in its places. This takes the container.

    Args:
        saved: the container, or any other value, which is returned as it is.
        live: the live container.
        place: returns the value for a key, the saved value and the live one; `NOTHING` if a dict lacks the key, and a sequence has None.
    """
    if isinstance(saved, dict):
        left = _Unsavable(live.items() if isinstance(live, dict) else ())
        items = [
            item
            for key, value, here in pairs(saved, live)
            for item in (left.take(key) if type(key) is UnsavedValue else [(key, place(key, value, here))])
        ]
        saved.clear()
        for key, value in items:  # a Counter's `update` would add
            if value is not NOTHING:
                saved[key] = value
    elif isinstance(saved, _SEQUENCES):
        values = [None if (value := place(*each)) is NOTHING else value for each in pairs(saved, live)]
        if isinstance(saved, tuple):
            return tuple(values) or saved
        if values:
            saved.clear()
            saved.extend(values)
    elif isinstance(saved, (set, frozenset)) and UnsavedValue in {*map(type, saved)}:
        left = _Unsavable((each, each) for each in (live if isinstance(live, (set, frozenset)) else ()))
        return type(saved)(
            element
            for each in saved
            for element, _ in (left.take(each) if type(each) is UnsavedValue else [(each, each)])
        )
    return saved


class _Unsavable:
    """The live keys or elements that no save can hold, each with its value. Each stays in the place of one that was left out."""

    def __init__(self, items: Iterable[tuple[Any, Any]]) -> None:
        self._items = items
        self._left: list[tuple[Any, Any]] | None = None

    def take(self, lost: UnsavedValue) -> list[tuple[Any, Any]]:
        if self._left is None:
            self._left = [item for item in self._items if not _is_savable(item[0])]
        found = [at for at, (key, _) in enumerate(self._left) if type_name(type(key)) == lost.type]
        return [self._left.pop(found[0])] if found else []


def _is_savable(key: Any) -> bool:
    try:
        encode(key, lambda tensor: "")
    except StateError:
        return False
    return True


def with_live(saved: Any, live: Any = NOTHING, *, plain: bool = False) -> Any:
    """Return a decoded tree with the live value at each place whose value was not saved. This takes the containers of `saved`.

    If nothing is there, a dict lacks the key, and a list or a tuple has None.

    Args:
        saved: the tree.
        live: the tree of the live object.
        plain: whether the values of an object stand for it, as for tools that know no such object.
    """

    def place(key: Any, saved: Any, live: Any) -> Any:
        if isinstance(saved, UnsavedValue):
            return live
        if isinstance(saved, SavedObject):
            return place(key, saved.value, NOTHING) if plain else saved
        return placed(saved, live, place)

    found = place(None, saved, live)
    return None if found is NOTHING else found
