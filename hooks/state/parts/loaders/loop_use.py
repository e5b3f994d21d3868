"""Loops over a registered loader that no restart repeats: named once, from what the first turns show.

A turn ends at a boundary. A loader that only an evaluation reads delivers in few turns, and nothing is reported of it.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Set
from contextlib import suppress
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ....checkpoint.format.values.sameness import same
from ...inventory.call_stack import counts_anew
from .batch_mark import leaf_of
from .generators import objects

log = logging.getLogger("spotguard")

#: Turns after a restore that are looked at.
TURNS = 4
#: The first batches of a pass that are followed to its end, and the turns that tell how long one is.
_FIRST = 3
_LISTS = (list, tuple, deque)

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
THREAD = (
    "%s: a thread of this process reads ahead and draws random numbers, so how far they are at a step is chance, and a resumed run has "
    "others; leave the thread out of %s, and let the num_workers= of a DataLoader read ahead"
)
CYCLED = (
    "%s: its batches are kept, and training continues behind its pass without another iter(): a resumed run has only the rest of a pass; "
    "instead of itertools.cycle or a list, write a generator with `while True: yield from %s`"
)

OVER = (
    "%s: the loop at %s begins at its first number again, and its epoch is %d here, so the resumed run trains more passes than an uninterrupted one; "
    "write `for epoch in range(%s.epoch, …)`"
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
        #: Whether the loop asks for the position, and so counts as a resumed one has to.
        self.counts = False
        self._iterator: Any = None
        self.restored()

    def restored(self) -> None:
        """Begin the first turn."""
        #: Batches of each ended turn, up to `TURNS` of them.
        self._turns: list[int] = []
        #: Batches that this turn has taken, those of the pass, and those of it before a restart.
        self.delivered = self._taken = self._resumed = 0
        self._held = 0
        self._last: deque[Any] = deque(maxlen=2)
        self._first: list[Any] = []
        #: Turns since a pass ended whose batches are kept; None if there is none.
        self._idle: int | None = None
        #: Batches behind the last step of the pass that is over, and those before, once another has begun.
        self._tail = (0, 0)
        #: Batches of each turn that took any, 0 once they differ, and how many turns told it.
        self._usual = (-1, 0)
        #: Whether the pass has reached a boundary, and whether the loop may have left it.
        self._stepped = self._open = False
        #: How far the other iterators were at the second turn, by their identity.
        self._others: dict[int, Any] = {}
        #: The threads before an iterator was made, those that it had then started, and the loader's own generators behind a batch.
        self._threads: set[threading.Thread] = set()
        self._begun: set[threading.Thread] = set()
        self._own: dict[str, Any] | None = None

    @property
    def watches(self) -> bool:
        """Whether this is one of the first turns, in which a loop is looked at."""
        return len(self._turns) < TURNS

    def begins(self) -> None:
        """Note that an iterator is about to be made."""
        self._own = None
        self._threads = {*threading.enumerate()}

    def began(self, iterator: object, taken: int) -> None:
        """Note a new pass, or the rest of one of which `taken` batches are over."""
        # A loop that is ended behind a batch, as zip(loader, range(k)) is, has taken one more.
        at_step = not self.delivered or (self.delivered == 1 and not self.counts)
        left = self._open and self._stepped and at_step and self._has_more()
        if left:
            stepped = self._taken - self.delivered - (0 if self.counts else self._resumed)
            self._say(LEFT, self.name, stepped, self.name, stepped)
        self._tail = (self.delivered, self._taken - self.delivered) if self._stepped else (0, 0)
        self._idle, self._taken, self._resumed, self._first = None, taken, taken, []
        self._stepped, self._open = False, True
        self._begun = {*threading.enumerate()} - self._threads
        with suppress(TypeError):
            self._iterator = weakref.ref(iterator)

    def took(self, batch: Any) -> None:
        """Note a batch that the loop takes."""
        self.delivered += 1
        self._taken += 1
        self._open = True
        watches = self.watches
        if watches or len(self._first) < _FIRST:
            kept = _reference(batch)
            if watches:
                self._last.append(kept)
            if len(self._first) < _FIRST:
                self._first.append(kept)

    def fetched(self, drew: bool, own: dict[str, Any], *, first: bool) -> None:
        """Note what a batch has drawn.

        Args:
            drew: whether the global generators have moved while the batch was taken; for a first one, whether any has since `iter()`.
            own: the states of the loader's own ones. A thread moves them at any time.
            first: it is the first one of a pass, for which a shuffle draws. The loop waits for it, unless a thread began before.
        """
        before, self._own = self._own, own
        threads = self._started() & self._begun if first else self._started()
        if threads and (drew or (before is not None and same(before, own))):
            self._say(THREAD, self.name, self.name)

    def _started(self) -> set[threading.Thread]:
        """Return the threads that have begun since the iterator was made, and hold an iterator over samples."""
        started = {*threading.enumerate()} - self._threads
        frames = sys._current_frames() if started else {}
        return {each for each in started if _holds_iterator(frames.get(each.ident or 0))}

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
        if self._stepped and len(self._first) == _FIRST and all(map(_lives, self._first)):
            self._idle = 0

    def resumes(self, passes: int, frame: types.FrameType) -> None:
        """Note the first iterator behind a restore, of which so many passes are over."""
        place = ""
        with suppress(Exception):  # the script is any code
            place = counts_anew(frame) if passes else ""
        if place:
            self._say(OVER, self.name, place, passes, self.name)

    def workers_drew(self) -> None:
        """Report random numbers of workers that outlive a pass."""
        self._say(DREW, self.name, self.name)

    def boundary(self) -> None:
        """End a turn. The training thread calls it, and it takes about a microsecond behind the first turns."""
        if self._idle is not None and not self.delivered:
            self._idle += 1
            if self._idle == 2 and self._keeps_batches():
                self._say(CYCLED, self.name, self.name)
        (tail, stepped), (usual, turns) = self._tail, self._usual
        # A step that has taken the tail along is as long as the others. Lengths that differ tell nothing, nor do steps of one batch.
        dropped = usual > 1 and turns >= _FIRST and self.delivered == tail + usual
        if tail and dropped:
            self._say(TAIL, self.name, tail, stepped)
        if self.delivered and not tail:
            self._usual = (self.delivered if usual in (-1, self.delivered) else 0, turns + 1)
        if self.watches:
            self._end_turn()
        self._stepped = self._stepped or self._taken > 0
        self._tail, self.delivered = (0, 0), 0

    def _end_turn(self) -> None:
        self._turns.append(self.delivered)
        self._held += len(self._last) == 2 and _lives(self._last[0])
        first, *others = self._turns
        if len(self._turns) == TURNS:
            ahead = first > others[0] and len(set(others)) == 1 and self._held == TURNS
            if ahead:
                self._say(AHEAD, self.name, ", ".join(map(str, self._turns)), TURNS)
            self._last.clear()
        if len(self._turns) in (2, TURNS) and not any(self._turns):
            known, self._others = self._others, self._iterators()
            moved = any(known.get(each) != at for each, at in self._others.items())
            if moved and len(self._turns) == TURNS:
                self._say(PAST, self.name, type(self._loader).__name__, self.name)

    def _iterators(self) -> dict[int, Any]:
        """Return how far each other iterator of the loader is that lives. It takes some 10 ms.

        One that was read before the first turn, such as that of workers that stay, stands still.
        """
        loader = self._loader
        ours = None if self._iterator is None else self._iterator()
        batches = loader._index_sampler if isinstance(loader, DataLoader) else None
        found: dict[int, Any] = {}
        for each in gc.get_objects():
            kind = type(each)
            if batches is not None and issubclass(kind, _BaseDataLoaderIter):
                if each._index_sampler is batches:
                    found[id(each)] = each._num_yielded
            elif kind is types.GeneratorType and each is not ours:
                frame = each.gi_frame
                if frame is not None and frame.f_locals.get("self") is loader:
                    found[id(each)] = object()
        if (inner := getattr(loader, "_it", None)) is not None:
            found[id(inner)] = getattr(inner, "_num_yielded", None)
        return found

    def _keeps_batches(self) -> bool:
        """Return whether something beside the loader keeps the first batch of the pass. It takes some 50 ms for each object asked."""
        if not all(map(_lives, self._first)):
            return False
        own = {id(self._loader), *(id(each) for _, each in objects(self._loader))}
        found = gc.get_referrers(self._first[0]())
        for each in found:
            if isinstance(each, types.FrameType):
                continue
            if id(each) not in own and not _is_data(each, own):
                return True
            above = gc.get_referrers(each)
            if any(type(one) in _LISTS and id(one) not in own and one is not found for one in above):
                return True
        return False

    def _say(self, message: str, *values: object) -> None:
        """Log a message once."""
        if message not in self._said:
            self._said.add(message)
            log.warning(message, *values)


def _holds_iterator(frame: types.FrameType | None) -> bool:
    """Return whether a thread holds an iterator of a DataLoader or of nodes: in a function that it runs, or in an object of one."""
    while frame is not None:
        held = [*frame.f_locals.values()]
        held += getattr(frame.f_locals.get("self"), "__dict__", {}).values()
        if any(
            issubclass(type(each), _BaseDataLoaderIter) or type(each).__module__.startswith("torchdata.nodes")
            for each in held
        ):
            return True
        frame = frame.f_back
    return False


def _is_data(value: object, own: Set[int], levels: int = 2) -> bool:
    """Return whether one of a loader's own objects holds a value, or a container that does. Long ones are known, but not all in them."""
    above = gc.get_referrers(value)
    if any(id(each) in own for each in above):
        return True
    held = (
        each for each in above if type(each) in _LISTS or (type(each) is dict and "__builtins__" not in each)
    )
    return levels > 0 and any(_is_data(each, own, levels - 1) for each in held)


def _reference(batch: Any) -> Any:
    """Return a weak reference to the memory of a batch; None if nothing of it can be followed."""
    leaf = leaf_of(batch)
    return None if leaf is None else weakref.ref(leaf)


def _lives(reference: Any) -> bool:
    return reference is not None and reference() is not None
