"""Loops over a registered loader that no restart repeats: named once, from what the first turns show.

A turn ends at a boundary. A loader that only an evaluation reads delivers in few turns, and nothing is reported of it.
"""

from __future__ import annotations

import gc
import logging
import types
import weakref
from collections import deque
from contextlib import suppress
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .batch_mark import leaf_of

log = logging.getLogger("spotguard")

#: Turns after a restore that are looked at.
TURNS = 4
#: The first batches of a pass that are followed to its end.
_FIRST = 3

AHEAD = (
    "%s: batches are taken before the turn that trains on them (%s in the first %d turns), and a resumed run leaves out what "
    "was taken ahead: take each batch in its own turn, and let num_workers= load ahead"
)
PAST = (
    "%s is registered and delivers nothing, and the %s inside it is iterated: a resumed run begins its pass again; iterate %s itself, "
    "the ResumableLoader"
)
LEFT = (
    "%s: the loop leaves a pass behind batch %d and guard.step(), and a restart there would continue with the next batch: "
    "leave it by %s = spotguard.ResumableLoader(…, limit=%d)"
)
TAIL = (
    "%s: the last %d batches of a pass came behind its last guard.step(), so they belong to no step: call optimizer.step() and "
    "guard.step() behind the pass, or leave them out by spotguard.ResumableLoader(…, limit=%d)"
)
DREW = (
    "%s: its dataset draws random numbers in workers that persistent_workers=True keeps from the pass before, and a restart begins "
    "workers anew: from this pass on a resumed run has other numbers; leave persistent_workers out of the loader of %s"
)
CYCLED = (
    "%s: its batches are kept, and training continues behind its pass without another iter(): a resumed run has only the rest of a pass; "
    "instead of itertools.cycle or a list, write a generator with `while True: yield from %s`"
)


class LoopUse:
    """What the training loop does with one loader.

    Args:
        loader: the wrapped loader.
    """

    def __init__(self, loader: Any) -> None:
        #: The registered name.
        self.name = "loader"
        self._loader = loader
        self._said: set[str] = set()
        self.restored()

    def restored(self) -> None:
        """Begin the first turn."""
        #: Batches of each ended turn, up to `TURNS` of them.
        self._turns: list[int] = []
        #: Batches that this turn has taken, and those of the pass.
        self.delivered = self._taken = 0
        self._held = 0
        self._last: deque[Any] = deque(maxlen=2)
        self._first: list[Any] = []
        #: Turns since a pass ended whose batches are kept; None if there is none.
        self._idle: int | None = None
        #: Batches behind the last step of a pass, and those before; of the pass that ended, and once another has begun.
        self._tail = self._carried = (0, 0)
        #: Batches of the last turn.
        self._usual = 0
        #: Whether the pass has reached a boundary, and whether the loop left it right there.
        self._stepped = self._open = False
        self._iterator: Any = None

    def began(self, iterator: object, taken: int) -> None:
        """Note a new pass, or the rest of one of which `taken` batches are over."""
        left = self._open and self._stepped and not self.delivered and self._has_more()
        if left and self._first_time("left"):
            log.warning(LEFT, self.name, self._taken, self.name, self._taken)
        self._idle, self._taken, self._first = None, taken, []
        self._carried, self._tail = self._tail, (0, 0)
        self._stepped, self._open = False, True
        with suppress(TypeError):
            self._iterator = weakref.ref(iterator)

    def took(self, batch: Any) -> None:
        """Note a batch that the loop takes."""
        self.delivered += 1
        self._taken += 1
        self._open = True
        watches = len(self._turns) < TURNS
        if watches or len(self._first) < _FIRST:
            kept = _reference(batch)
            if watches:
                self._last.append(kept)
            if len(self._first) < _FIRST:
                self._first.append(kept)

    def left(self) -> None:
        """Note that another loader has ended the loop."""
        self._open = False

    def _has_more(self) -> bool:
        try:
            return self._taken < len(self._loader)
        except (TypeError, NotImplementedError):  # a stream has no length
            return True

    def ended(self) -> None:
        """Note that a pass has delivered all its batches."""
        self._open = False
        if self._stepped and self.delivered:
            self._tail = (self.delivered, self._taken - self.delivered)
        if self._stepped and len(self._first) == _FIRST and all(map(_lives, self._first)):
            self._idle = 0

    def workers_drew(self) -> None:
        """Report random numbers of workers that outlive a pass."""
        if self._first_time("drew"):
            log.warning(DREW, self.name, self.name)

    def boundary(self) -> None:
        """End a turn. The training thread calls it, and it takes about a microsecond behind the first turns."""
        if self._idle is not None and not self.delivered:
            self._idle += 1
            if self._idle == 2 and all(map(_lives, self._first)) and self._first_time("cycled"):
                log.warning(CYCLED, self.name, self.name)
        tail, stepped = self._carried
        # A step that is as long as the one before has taken the tail along.
        if tail and self.delivered != self._usual and self._first_time("tail"):
            log.warning(TAIL, self.name, tail, stepped)
        if len(self._turns) < TURNS:
            self._end_turn()
        self._stepped = self._stepped or self._taken > 0
        self._tail = self._carried = (0, 0)
        self._usual, self.delivered = self.delivered, 0

    def _end_turn(self) -> None:
        self._turns.append(self.delivered)
        self._held += len(self._last) == 2 and _lives(self._last[0])
        first, *others = self._turns
        if len(self._turns) == TURNS:
            ahead = first > others[0] and len(set(others)) == 1 and self._held == TURNS
            if ahead and self._first_time("ahead"):
                log.warning(AHEAD, self.name, ", ".join(map(str, self._turns)), TURNS)
            self._last.clear()
        past = len(self._turns) in (2, TURNS) and not any(self._turns) and self._is_iterated()
        if past and self._first_time("past"):
            log.warning(PAST, self.name, type(self._loader).__name__, self.name)

    def _is_iterated(self) -> bool:
        """Return whether another iterator of the loader lives. It takes some 10 ms."""
        loader = self._loader
        ours = None if self._iterator is None else self._iterator()
        batches = loader._index_sampler if isinstance(loader, DataLoader) else None
        for each in gc.get_objects():
            kind = type(each)
            if batches is not None and issubclass(kind, _BaseDataLoaderIter):
                if each is not ours and each._index_sampler is batches:
                    return True
            elif kind is types.GeneratorType and each is not ours:
                frame = each.gi_frame
                if frame is not None and frame.f_locals.get("self") is loader:
                    return True
        return getattr(loader, "_it", None) is not None

    def _first_time(self, what: str) -> bool:
        known = what in self._said
        self._said.add(what)
        return not known


def _reference(batch: Any) -> Any:
    """Return a weak reference to the memory of a batch; None if nothing of it can be followed."""
    leaf = leaf_of(batch)
    return None if leaf is None else weakref.ref(leaf)


def _lives(reference: Any) -> bool:
    return reference is not None and reference() is not None
