"""The place of `guard.step()` in a training loop, derived from the order of the first boundaries and optimizer steps.

Order alone is not enough. `guard.step()` at the top of the loop gives boundary, step, boundary, step. A correct loop
gives the same if a GradScaler skipped its first step. So two facts must agree before a warning. The first turn lacks
an optimizer that every later turn has. In the function that makes both calls, that optimizer's step comes after
`guard.step()`.
"""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import NamedTuple

#: Turns that are compared: the first one, and those that show the usual turn.
TURNS = 4
_RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class CallSite(NamedTuple):
    """A function on the call stack, and the place that it has reached."""

    code: CodeType
    #: The offset of the current instruction in the bytecode.
    offset: int
    line: int

    @property
    def place(self) -> str:
        return f"{os.path.basename(self.code.co_filename)}:{self.line}"


#: Call sites from the outermost function to the innermost.
CallPath = tuple[CallSite, ...]


def call_path(frame: FrameType | None) -> CallPath:
    """Return the functions that led to this frame."""
    sites = []
    while frame is not None:
        sites.append(CallSite(frame.f_code, frame.f_lasti, frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(reversed(sites))


def common(one: CallPath, other: CallPath) -> tuple[CallSite, CallSite] | None:
    """Return the place of each call in the function that makes both; None if no single function determines the order."""
    for at, (one_site, other_site) in enumerate(zip(one, other, strict=False)):
        if one_site != other_site:
            # A generator is entered at one place of its caller and continues at another place of its own.
            entered = [path[at + 1].code.co_flags for path in (one, other) if at + 1 < len(path)]
            if one_site.code is not other_site.code or any(flags & _RESUMED for flags in entered):
                return None
            return one_site, other_site
    return None


@dataclass(frozen=True, slots=True)
class Misplaced:
    """A `guard.step()` that comes before an optimizer's step of the same turn."""

    #: The optimizers that step after `guard.step()`.
    after: frozenset[int]
    #: Whether other optimizers step before it.
    between: bool
    boundary: str
    step: str


class LoopOrder:
    """The first turns after a restore. A turn ends with a boundary.

    Each optimizer has a number that stays its own during these turns.
    """

    def __init__(self) -> None:
        self._turns: list[dict[int, CallPath]] = [{}]
        self._boundaries: list[CallPath] = []

    @property
    def done(self) -> bool:
        """Return whether enough turns were seen. Later turns do not change the result."""
        return len(self._boundaries) >= TURNS

    @property
    def begins(self) -> bool:
        """Return whether no boundary has come yet."""
        return not self._boundaries

    def stepped(self, optimizer: int, path: CallPath) -> None:
        """Record an optimizer's first step of this turn."""
        self._turns[-1].setdefault(optimizer, path)

    def boundary(self, path: CallPath) -> Misplaced | None:
        """End the turn.

        Returns:
            The mistake of the loop once enough turns were seen; None before that, and if there is none.
        """
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
        boundary_site, step_site = min(after.values(), key=lambda places: places[1].offset)
        return Misplaced(frozenset(after), bool(first), boundary_site.place, step_site.place)
