"""What ranks say to the store, one operation at a time and from any point again: what explorations are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spotguard.hooks.consensus.protocol import Add, Answer, Claim, Drop, Get, Has, Operation, Saying, Set


class Violation(AssertionError):
    """Something happened that must not; the acts that lead there are in the message."""


class Sayings:
    """Generators cannot be copied: each is known by where it stands, and made again by answering anew."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._made: dict[int, tuple[Callable[[], Saying[Any]], tuple[Answer, ...]]] = {}
        self._next: dict[tuple[int, Answer], tuple[int | None, Any]] = {}
        self._begun: dict[object, int] = {}
        #: What each says where it stands.
        self.pending: dict[int, Operation] = {}

    def begin(self, name: object, make: Callable[[], Saying[Any]]) -> int:
        """Where it stands at first. Those of one name are the same."""
        if name not in self._begun:
            known, _ = self._run(make, ())
            assert known is not None
            self._begun[name] = known
        return self._begun[name]

    def answer(self, known: int, answer: Answer) -> tuple[int | None, Any]:
        """Where it stands after the answer; or None, and what it has returned."""
        if (known, answer) not in self._next:
            make, answers = self._made[known]
            self._next[known, answer] = self._run(make, (*answers, answer))
        return self._next[known, answer]

    def _run(self, make: Callable[[], Saying[Any]], answers: tuple[Answer, ...]) -> tuple[int | None, Any]:
        saying = make()
        try:
            operation = next(saying)
            for each in answers:
                operation = saying.send(each)
        except StopIteration as end:
            return None, end.value
        known = self._numbers.setdefault((_stand(saying), operation), len(self._numbers))
        self._made.setdefault(known, (make, answers))
        self.pending[known] = operation
        return known, None


def _stand(saying: object) -> tuple[object, ...]:
    """Where a generator stands: its lines and its values, down to the one that it waits for. (With what it says there
    that is all: none of those that are explored keeps a loop's iterator between two operations, or a sum half added up.)"""
    levels: list[object] = []
    while (frame := getattr(saying, "gi_frame", None)) is not None:
        values = tuple(
            (name, value) for name, value in frame.f_locals.items() if not hasattr(value, "gi_frame")
        )
        levels.append((frame.f_code.co_name, frame.f_lasti, values))
        saying = saying.gi_yieldfrom  # type: ignore[attr-defined]
    return tuple(levels)


def perform(store: dict[str, object], operation: Operation, *, overwrites: bool = False) -> Answer:
    """One operation, on a store that is a mapping."""
    match operation:
        case Set(values=values):
            store.update(values)
            return None
        case Add(key=key, amount=amount):
            store[key] = count = int(str(store.get(key, 0))) + amount
            return count
        case Claim(key=key, value=value):
            if overwrites:
                store[key] = value
            return str(store.setdefault(key, value)).encode()
        case Has(keys=keys):
            return all(key in store for key in keys)
        case Get(keys=keys):
            return tuple(str(store[key]).encode() for key in keys)
        case Drop(keys=keys):
            for key in keys:
                store.pop(key, None)
            return None
        case _:
            raise Violation(f"{operation} is none of the store's")
