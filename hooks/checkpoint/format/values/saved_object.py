"""What a checkpoint keeps of an object of a class: its kind, the name of its class, and the values in it.

A checkpoint never says which code to call. So an object is read as it is written, and a restore fills it into the live object at the
same place, if that object is of this class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: The kinds of objects: a dataclass's fields, a named tuple's items, an enum's member, a dict's subclass, a generator's state.
KINDS = ("dataclass", "namedtuple", "enum", "mapping", "generator")


@dataclass(slots=True, eq=False)
class SavedObject:
    """A value in place of an object.

    Args:
        kind: one of `KINDS`.
        cls: the full name of the object's class. It is compared, and never looked up.
        value: the values in the object.
    """

    kind: str
    cls: str
    value: Any
