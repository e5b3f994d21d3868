"""Placeholders in a saved tree for a value that is not plain: for an object of a class, and for a value that no save can hold.

A checkpoint never says which code to call. So an object is read as it is written, and a restore fills it into the live object at the
same place, if that object is of this class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: A value at several places, or one of several that shared memory.
SHARED = "shared"
#: The kinds of objects: a dataclass's fields, a named tuple's items, an enum's member, a dict's subclass, a generator's state.
KINDS = ("dataclass", "namedtuple", "enum", "mapping", "generator", SHARED)


@dataclass(slots=True, eq=False)
class SavedObject:
    """A value in place of an object.

    Args:
        kind: one of `KINDS`.
        cls: the full name of the object's class, or the mark of a shared value. It is compared, and never looked up.
        value: the values in the object, or the shared value.
    """

    kind: str
    cls: str
    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class UnsavedValue:
    """A value in place of one that could not be saved when the checkpoint was made. It also stands for a key, or for an element."""

    #: The full name of its type.
    type: str


def opened(saved: Any) -> tuple[Any, str]:
    """Return a saved value and its mark as a shared one, "" if it has none."""
    if isinstance(saved, SavedObject) and saved.kind == SHARED:
        return saved.value, saved.cls
    return saved, ""
