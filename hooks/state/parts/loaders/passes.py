"""A pass over the data: what an interrupted one is resumed from, and what the script draws at its beginning."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ....checkpoint.format.values.sameness import same
from .. import rng

T = TypeVar("T")

#: The states of the global generators, and of those inside a loader.
Captured = dict[str, Any]


@dataclass
class Pass:
    """A pass that is under way, or was interrupted."""

    #: The generators before `iter()`, and those before the first batch if anything moved them since.
    begin: Captured
    #: Whether workers were kept from the pass before.
    kept: bool
    #: The epoch that a sampler was told, and the passes that the loader counts itself.
    epoch: int | None
    passes: dict[str, int]
    #: The loader's own state before `iter()`, which a replay begins from.
    before: Any
    #: The generators behind `iter()`, if the script drew from them before the first batch: a restart repeats it.
    made: Captured | None = None
    first: Captured | None = None
    #: Batches that training took, and checksums over samples of the first one, and of all.
    taken: int = 0
    marks: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        #: Whether an iterator of it was made here, and whether a boundary came since. Batches without one trained nothing.
        self.live = self.stepped = False
        #: Whether each turn until now has drawn before its batch: `made` was no beginning then, and a restart repeats nothing.
        self.draws = False

    def begun(self) -> dict[str, Any]:
        """Return what it began with, as the arguments of another one."""
        known = ("begin", "kept", "epoch", "passes", "before", "first")
        return {name: getattr(self, name) for name in known} | {"made": None if self.draws else self.made}


class Holder(Protocol):
    """A loader with generators."""

    def captured(self) -> Captured: ...
    def put_back(self, states: Captured) -> None: ...


class FirstDraws:
    """Draws of the script between `iter()` and the first batch: of all loaders of the process, as the generators are.

    A resumed loader has the generators of behind its `iter()` then, so the script draws the same again. Training's come back as
    soon as a loader delivers, `guard.steps()` yields, or a boundary comes.

    A loop over `guard.step()` may draw there as it does in each turn. The turns behind the first one tell.
    """

    def __init__(self) -> None:
        #: Loaders whose iterator has not delivered in this turn: the generators behind its iter(), and behind what loaders drew since.
        self.waiting: weakref.WeakKeyDictionary[Holder, list[Captured]] = weakref.WeakKeyDictionary()
        #: Resumed loaders that have not delivered, with the generators of training.
        self.repeated: list[tuple[Holder, Captured]] = []
        #: Passes that had draws before their first batch, and the generators behind the last boundary.
        self._watched: weakref.WeakKeyDictionary[Holder, Pass] = weakref.WeakKeyDictionary()
        self._turn: Captured | None = None

    def by_loader(self, call: Callable[[], T]) -> T:
        """Call what draws for a loader, and not for the script."""
        before = [(each, each.captured()) for each in self.waiting]
        result = call()
        for each, states in before:
            if (known := self.waiting.get(each)) is not None and not same(states, known[1]):
                known[1] = each.captured()
        return result

    def decide(self, loader: Holder, this: Pass, *, sure: bool) -> None:
        """Record whether the script has drawn at the beginning of a pass.

        Args:
            loader: the loader.
            this: its pass.
            sure: whether the beginning ends here, and not at a first batch that a turn may have drawn for.
        """
        made, known = self.waiting.pop(loader, (None, None))
        if made is not None and same(known, loader.captured()):
            this.made = made
            if not sure:
                self.watch(loader, this)

    def watch(self, loader: Holder, this: Pass | None) -> None:
        """Have the turns from now on tell what was drawn at the beginning of a pass; None where the pass is over."""
        self._watched.pop(loader, None)
        if this is not None:
            self._watched[loader] = this

    def end(self) -> None:
        """Put training's generators back."""
        while self.repeated:
            loader, states = self.repeated.pop()
            loader.put_back(states)

    def deliver(self, *, boundary: bool = False) -> None:
        """Note that a loader delivers its next batch, or that a boundary comes."""
        self.end()
        if self._turn is None:
            return
        draws = same(self._turn, rng.capture()) != ""
        if boundary and not draws:  # of another loader, or of a turn that tells nothing
            return
        for this in self._watched.values():
            this.draws = draws
        if boundary or not draws:
            self._watched.clear()
        self._turn = None

    def boundary(self) -> None:
        """End a turn."""
        self.deliver(boundary=True)
        self.waiting.clear()  # what moves the generators from now on is training
        self._turn = rng.capture() if self._watched else None

    def forget(self) -> None:
        """Begin anew, with the generators as they are."""
        self.repeated.clear()
        self.waiting.clear()
        self._watched.clear()


first_draws = FirstDraws()
