"""What is asked of the job's store, as values: `member` says them one by one, `c10d` does them, and so does whoever
explores in which order those of all ranks may come."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class Set:
    """Values under their keys. They are there for sure when a later operation of the same rank has been answered."""

    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Add:
    """To a counter, which begins at 0. Answered by its new value, an `int`."""

    key: str
    amount: int = 1


@dataclass(frozen=True, slots=True)
class Claim:
    """A value under a key that has none. Answered by what is there then, `bytes`: this, or what came first."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Has:
    """Answered by whether all of these keys have a value, a `bool`."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Get:
    """Of keys that are known to be there. Answered by their values, a tuple of `bytes`."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """For all keys to be there. Answered by a `Waited`."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Keys that nobody asks for any more. A store that cannot forget keeps them."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hear:
    """No operation of the store: this entry is the next of the log. It is heard when this is answered."""

    epoch: int
    raw: bytes


class Waited(Enum):
    """How a wait has ended."""

    THERE = "there"
    #: The time for it is over.
    LATE = "late"
    #: What it was for does not count any more.
    OVER = "over"


Operation = Set | Add | Claim | Has | Get | Wait | Drop | Hear
#: None for what has no answer but that it is done.
Answer = None | int | bool | bytes | tuple[bytes, ...] | Waited

T = TypeVar("T")
#: Says operations, is sent the answer of each, and returns.
Saying = Generator[Operation, Answer, T]
