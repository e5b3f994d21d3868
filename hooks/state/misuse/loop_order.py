"""Where `guard.step()` stands in a training loop: told from the order of the first boundaries and optimizer steps.

Order alone does not tell. `guard.step()` at the top of the loop gives boundary, step, boundary, step; so does a sound loop
whose first step a GradScaler skipped. So two things must agree before anything is said: the first turn lacks an optimizer
that every later turn has, and in the function that makes both calls that optimizer's step comes after `guard.step()`.
"""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import NamedTuple

#: Turns that are compared: the first one, and those that show what a usual turn is.
TURNS = 4
_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class CallSite(NamedTuple):
    """A function that is running, and how far it has come."""

    code: CodeType
    #: Of the instruction in its bytecode.
    offset: int
    line: int

    @property
    def place(self) -> str:
        return f"{os.path.basename(self.code.co_filename)}:{self.line}"


#: From the outermost function to the innermost.
CallPath = tuple[CallSite, ...]


def call_path(frame: FrameType | None) -> CallPath:
    """The functions that led to this frame."""
    found = []
    while frame is not None:
        found.append(CallSite(frame.f_code, frame.f_lasti, frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(reversed(found))


def common(one: CallPath, other: CallPath) -> tuple[CallSite, CallSite] | None:
    """The place of each call in the function that makes both; None where no one function says which comes first."""
    for at, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            # A generator is entered at one place of its caller and goes on at another of its own.
            entered = [path[at + 1].code.co_flags for path in (one, other) if at + 1 < len(path)]
            if mine.code is not theirs.code or any(flags & _RESUMED for flags in entered):
                return None
            return mine, theirs
    return None


@dataclass(frozen=True, slots=True)
class Misplaced:
    """`guard.step()` comes before an optimizer's step of the same turn."""

    #: The optimizers that step after it.
    after: frozenset[int]
    #: Whether others step before it.
    between: bool
    boundary: str
    step: str


class LoopOrder:
    """The first turns after a restore. A turn ends with a boundary.

    Optimizers go by a number that is theirs for as long as these turns last.
    """

    def __init__(self) -> None:
        self._turns: list[dict[int, CallPath]] = [{}]
        self._boundaries: list[CallPath] = []

    @property
    def done(self) -> bool:
        """Whether enough was seen: what follows changes nothing."""
        return len(self._boundaries) >= TURNS

    def stepped(self, optimizer: int, path: CallPath) -> None:
        """An optimizer's first step of this turn."""
        self._turns[-1].setdefault(optimizer, path)

    def boundary(self, path: CallPath) -> Misplaced | None:
        """The turn is over. Returns what is wrong with the loop, when enough was seen, and None where nothing is."""
        self._boundaries.append(path)
        if self.done:
            return self._judge()
        self._turns.append({})
        return None

    def _judge(self) -> Misplaced | None:
        first, usual, *others = self._turns
        if any(turn.keys() != usual.keys() for turn in others) or not first.keys() < usual.keys():
            return None
        boundary = self._boundaries[0]
        if any(each != boundary for each in self._boundaries):
            return None
        after: dict[int, tuple[CallSite, CallSite]] = {}
        for optimizer, path in usual.items():
            places = common(boundary, path)
            if places is None:
                return None
            comes_after = places[1].offset > places[0].offset
            if comes_after is (optimizer in first):
                return None
            if comes_after:
                after[optimizer] = places
        mine, theirs = min(after.values(), key=lambda places: places[1].offset)
        return Misplaced(frozenset(after), bool(first), mine.place, theirs.place)
