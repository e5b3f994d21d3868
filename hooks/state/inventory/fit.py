"""How a saved value meets the live one at its place, when a registered dict comes back.

The script goes on with the objects that it holds, so these take the saved values themselves. `fit_of` says what is possible at one
place, and `Filling` does it for a whole dict.
"""

from __future__ import annotations

import enum
import operator
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ...checkpoint.format.values.sameness import same
from ...checkpoint.format.values.saved_object import SavedObject
from ...checkpoint.format.values.unsaved_value import UnsavedValue
from ..memory_access import copyable, expanded, unreadable
from . import objects
from .frozen import freeze
from .layout import unlike_layout
from .looks import crc_of
from .ownership import Ownership, is_array
from .walk import ATOMS, Way, place

#: What stands for a live value where there is none.
_NOTHING = object()
_SETS, _LISTS, _DICTS = (set,), (list, deque, bytearray), (dict, OrderedDict, defaultdict, Counter)


class PlaceFit(enum.Enum):
    """What happens at one place."""

    #: The live value takes the saved one.
    FILL = "fill"
    #: The saved value is put there: nothing is there yet, or a value that nobody can change.
    MAKE = "make"
    #: The saved value is put there, and the live one is no longer the script's state.
    REPLACE = "replace"
    #: The live value stays: no save could hold the value, or a checkpoint has no code to make an object of a class.
    KEEP = "keep"


def fit_of(saved: Any, live: Any, *, alone: bool, borrowed: bool = False) -> PlaceFit:
    """Return what happens where a saved value meets a live one, without those that they hold.

    Args:
        alone: whether nothing at another place differs if the live value takes the saved one.
        borrowed: whether its memory is another registered value's. Training changes that, and the saved value may have been a copy.
    """
    if isinstance(saved, UnsavedValue):
        return PlaceFit.KEEP
    if isinstance(saved, SavedObject):
        if live is _NOTHING or not objects.fits(saved, live):
            return PlaceFit.KEEP
        if saved.kind == "generator":  # the script draws from this one, whoever else does
            return PlaceFit.FILL
        fills = objects.is_mutable(live)
    elif live is _NOTHING or not _is_mutable(live):
        return PlaceFit.MAKE
    elif isinstance(saved, torch.Tensor):
        fills = isinstance(live, torch.Tensor) and _takes(live, saved)
    elif is_array(saved):
        fills = type(live) is type(saved) and _form(live) == _form(saved) and live.flags.writeable
    elif type(saved) is not type(live):
        fills = False
    else:
        fills = type(live) in (*_SETS, *_LISTS, *_DICTS)
        fills = fills and getattr(live, "maxlen", None) == getattr(saved, "maxlen", None)
    if not fills and isinstance(saved, SavedObject):
        return PlaceFit.MAKE
    if fills and not alone and not borrowed and _is_equal(live, saved):
        return PlaceFit.KEEP
    return PlaceFit.FILL if fills and alone else PlaceFit.REPLACE


def _is_equal(live: Any, saved: Any) -> bool:
    """Return whether a tensor or an array of the same form has the same bytes as the saved one."""
    if isinstance(saved, torch.Tensor):
        return crc_of(live) == crc_of(saved)
    return is_array(saved) and live.tobytes() == saved.tobytes()


def _write(live: Any, saved: Any) -> None:
    """Write a saved tensor or array into a live one of the same form."""
    if isinstance(live, torch.Tensor):
        with torch.no_grad():
            copyable(live.detach()).copy_(copyable(saved))
    else:
        live[...] = saved


def _meetings(saved: Any, live: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each saved value with the live one at its place, where there is one."""
    yield saved, live
    if isinstance(saved, SavedObject) and objects.fits(saved, live):
        saved, live = saved.value, getattr(objects.saved_object(live), "value", None)
    if isinstance(saved, dict) and isinstance(live, dict):
        for key in saved.keys() & live.keys():
            yield from _meetings(saved[key], live[key])
    elif type(saved) is type(live) and type(saved) in (list, tuple, deque):
        for one, other in zip(saved, live, strict=False):
            if type(one) not in ATOMS:
                yield from _meetings(one, other)


def _is_mutable(live: Any) -> bool:
    if isinstance(live, (torch.Tensor, dict, list, deque, set, bytearray)) or is_array(live):
        return True
    return objects.saved_object(live) is not None and objects.is_mutable(live)


def _form(array: Any) -> tuple[Any, ...]:
    return array.dtype, array.dtype.char, array.shape


def _takes(live: torch.Tensor, saved: torch.Tensor) -> bool:
    """Return whether a restore can write a saved tensor into the memory of a live one, unseen by autograd."""
    return (
        live.dtype == saved.dtype
        and live.shape == saved.shape
        and not unreadable(live)
        and not live.is_meta
        and not expanded(live)
        and live.grad_fn is None
        and not live.is_inference()
    )


class Filling:
    """One registered dict, as it comes back.

    Args:
        name: the registered name.
        ownership: the owners of the live values' memory.
    """

    def __init__(self, name: str, ownership: Ownership) -> None:
        self._name, self._ownership = name, ownership
        #: The ids of live values at several places whose saved values are equal, and those values: ids are not used again.
        self._agreed: set[int] = set()
        self._live: dict[int, Any] = {}
        #: One line for each live value that the script may go on with in vain, and for each that is not restored.
        self.said: list[str] = []

    def fill(self, live: dict[Any, Any], saved: dict[Any, Any]) -> None:
        """Give the registered dict its saved values. This takes the containers of `saved`."""
        meetings = [*_meetings(saved, live)]
        self._find_agreed(meetings)
        self._write_shared(meetings)
        self._place_below(saved, live, (), True)
        _refill(live, saved)

    def _find_agreed(self, meetings: Sequence[tuple[Any, Any]]) -> None:
        """Note the containers that are at several places and have equal saved values at all of them."""
        by_id: dict[int, list[Any]] = {}
        for saved, live in meetings:
            if self._ownership.places(live) > 1 and not self._ownership.is_owned(live):
                by_id.setdefault(id(live), []).append(saved)
                self._live[id(live)] = live
        for key, (first, *others) in by_id.items():
            places = self._ownership.places(self._live[key])
            if len(others) + 1 == places and not any(same(first, other) for other in others):
                self._agreed.add(key)

    def _write_shared(self, meetings: Sequence[tuple[Any, Any]]) -> None:
        """Write tensors and arrays that share memory with each other alone, if that gives each of them its saved value."""
        shared = [
            (live, saved)
            for saved, live in meetings
            if id(live) in self._ownership.shared and fit_of(saved, live, alone=True) is PlaceFit.FILL
        ]
        met = Counter(id(live) for live, _ in shared)
        elsewhere = any(met[id(live)] != self._ownership.places(live) for live, _ in shared)
        if elsewhere or met.keys() != self._ownership.shared:
            return  # a value in another registered dict would change too
        before = [freeze(live) for live, _ in shared]
        for live, saved in shared:
            _write(live, saved)
        if not all(_is_equal(live, saved) for live, saved in shared):
            for (live, _), former in zip(shared, before, strict=True):
                _write(live, former)

    def _placed(self, saved: Any, live: Any, way: Way, may_fill: bool) -> Any:
        """Return the value that belongs at a place: the live one, filled or not, or the saved one."""
        alone = id(live) in self._agreed or self._ownership.alone(live)
        # A list of a model's parameters means these; a `state_dict()` may have been replaced by copies of the best weights.
        borrowed = self._ownership.is_owned(live) and not isinstance(live, torch.nn.Parameter)
        fit = fit_of(saved, live, alone=alone, borrowed=borrowed)
        if fit is PlaceFit.KEEP:
            return live
        fills = fit is PlaceFit.FILL and may_fill
        if fit is PlaceFit.REPLACE and may_fill and self._ownership.is_seen_beside(live):
            self.said.append(
                f"{place(self._name, way)} {_why(saved, live)}, so it cannot take its saved value, and another object is in its "
                "place: if the script holds it elsewhere too, let it read the dict again after guard.restore()"
            )
        if isinstance(saved, torch.Tensor):
            if fills:
                self.said += unlike_layout(place(self._name, way), live, saved)
                _write(live, saved)
                return live
            there = isinstance(live, torch.Tensor) and not live.is_meta
            return saved.to(live.device) if there else saved
        if is_array(saved):
            if fills:
                _write(live, saved)
            return live if fills else saved
        may_fill = may_fill and fit is not PlaceFit.REPLACE
        if isinstance(saved, SavedObject):
            here = objects.saved_object(live)
            assert here is not None  # `_without_place` has asked
            values = self._place_below(saved.value, here.value, way, may_fill)
            if not fills:
                return objects.another(live, saved.kind, values)
            objects.fill(live, saved.kind, values)
            return live
        saved = self._place_below(saved, live if type(live) is type(saved) else _NOTHING, way, may_fill)
        if fills:
            _refill(live, saved)
            return live
        if type(saved) is tuple and type(live) is tuple and len(live) == len(saved):
            return live if all(map(operator.is_, live, saved)) else saved
        return saved

    def _place_below(self, saved: Any, live: Any, way: Way, may_fill: bool) -> Any:
        """Return a saved container with each of its values in its place."""
        if isinstance(saved, dict):
            known = live if isinstance(live, dict) else {}
            for key in [key for key, value in saved.items() if type(value) not in ATOMS or key in known]:
                value, now = saved[key], known.get(key, _NOTHING)
                if (lost := _without_place(value, now)) is None:
                    saved[key] = self._placed(value, now, (*way, key), may_fill)
                    if saved[key] is _NOTHING:
                        del saved[key]
                    continue
                self.said.append(
                    f"{place(self._name, (*way, key, *lost[0]))} was saved as a {lost[1]}, and no such object is there to take it: "
                    f"{place(self._name, (*way, key))} is not restored; put one there before guard.restore()"
                )
                if now is _NOTHING:
                    del saved[key]
                else:
                    saved[key] = now
        elif type(saved) in (list, tuple, deque):
            here = live if type(live) is type(saved) else ()
            placed = [
                value
                if type(value) in ATOMS
                else self._placed(value, here[at] if at < len(here) else _NOTHING, (*way, at), may_fill)
                for at, value in enumerate(saved)
            ]
            placed = [None if each is _NOTHING else each for each in placed]
            if type(saved) is tuple:
                return tuple(placed)
            _refill(saved, placed)
        return saved


def _without_place(saved: Any, live: Any) -> tuple[Way, str] | None:
    """Return the first saved object that no live one can take, with its keys and its class. Dicts say so for each of their keys."""
    if isinstance(saved, SavedObject):
        if live is _NOTHING or not objects.fits(saved, live):
            return (), saved.cls
    elif type(saved) in (list, tuple, deque):
        here = live if type(live) is type(saved) else ()
        for at, value in enumerate(saved):
            if type(value) not in ATOMS:
                found = _without_place(value, here[at] if at < len(here) else _NOTHING)
                if found is not None:
                    return (at, *found[0]), found[1]
    return None


def _refill(live: Any, values: Any) -> None:
    """Empty a container, and fill it again."""
    if isinstance(live, (list, bytearray)):
        live[:] = values
        return
    if isinstance(live, defaultdict):
        live.default_factory = values.default_factory
    live.clear()
    if isinstance(live, deque):
        live.extend(values)
    elif isinstance(live, dict):
        for key, value in values.items():  # a Counter's `update` would add
            live[key] = value
    else:
        live.update(values)


def _why(saved: Any, live: Any) -> str:
    here, there = _look(live), _look(saved)
    return "shares its memory" if here == there else f"is {here} here and {there} in the checkpoint"


def _look(value: Any) -> str:
    shape = f" of {value.dtype}, shape {tuple(value.shape)}" if hasattr(value, "dtype") else ""
    return f"a {value.cls if isinstance(value, SavedObject) else type(value).__name__}{shape}"
