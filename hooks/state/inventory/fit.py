"""How a saved value meets the live one at its place, when registered dicts come back.

The script goes on with the objects that it holds, so these take the saved values themselves. `fit_of` says what is possible at one
place, and `Filling` does it for all registered dicts.
"""

from __future__ import annotations

import enum
import operator
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import torch

from ...checkpoint.format.values.meeting import NOTHING, pairs, placed
from ...checkpoint.format.values.placeholders import SavedObject, UnsavedValue, opened
from ..memory_access import copy_into, expanded, unreadable
from ..sharding.fingerprint import crc_of
from . import objects
from .frozen import ALIAS, ITSELF, VIEW
from .looks import unlike_layout
from .objects import is_array
from .ownership import Ownership, extent
from .walk import ATOMS, Way, is_plain, place, walk

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


def fit_of(saved: Any, live: Any, *, alone: bool, stays: bool = False) -> PlaceFit:
    """Return what happens where a saved value meets a live one, without those that they hold.

    Args:
        alone: whether nothing at another place differs if the live value takes the saved one.
        stays: whether a live value that is not alone may stay, if it has the saved bytes already.
    """
    if isinstance(saved, UnsavedValue):
        return PlaceFit.KEEP
    if isinstance(saved, SavedObject):
        if live is NOTHING or not objects.fits(saved, live):
            return PlaceFit.KEEP
        if not objects.is_mutable(live):
            return PlaceFit.MAKE
        fills = True
    elif live is NOTHING or not _is_mutable(live):
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
    if fills and not alone and stays and _is_equal(live, saved):
        return PlaceFit.KEEP
    return PlaceFit.FILL if fills and alone else PlaceFit.REPLACE


def _is_equal(live: Any, saved: Any) -> bool:
    """Return whether a tensor or an array of the same form has the same bytes as the saved one."""
    if isinstance(saved, torch.Tensor):
        return crc_of(live) == crc_of(saved)
    return is_array(saved) and live.tobytes() == saved.tobytes()


def _meetings(saved: Any, live: Any) -> Iterator[tuple[str, Any]]:
    """Yield the mark of each saved value with the live one at its place, where there is one."""
    saved, mark = opened(saved)
    yield mark, live
    if isinstance(saved, SavedObject) and objects.fits(saved, live):
        saved, live = saved.value, getattr(objects.saved_object(live), "value", None)
    for _, each, here in pairs(saved, live):
        if here is not NOTHING and type(each) not in ATOMS:
            yield from _meetings(each, here)


def _is_mutable(live: Any) -> bool:
    return isinstance(live, torch.Tensor) or is_array(live) or objects.is_mutable(live)


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
    """The registered dicts, as they come back together.

    Args:
        dicts: by registered name, each dict with its saved tree; `NOTHING` for one that is not restored.
        ownership: returns the owners of the live values' memory, as they are now.
        named: returns the tensors of other registered values by name, which have their saved values already.
    """

    def __init__(
        self,
        dicts: Mapping[str, tuple[dict[Any, Any], Any]],
        ownership: Callable[[], Ownership],
        named: Callable[[], Mapping[str, torch.Tensor]],
    ) -> None:
        self._dicts, self._named = dicts, named
        self._find_ownership = ownership
        #: By what a live value is: what the saved values at its places are. Both are found before anything changes.
        self._saved_at: dict[Hashable, set[Hashable]] = {}
        #: By mark: the value that is at its places now. By the number of a mark: the memory.
        self._placed_as: dict[str, Any] = {}
        self._memory: dict[str, Hashable] = {}

    def fill(self, name: str) -> list[str]:
        """Give a registered dict its saved values. This takes the containers of its tree.

        Returns:
            One line for each live value that the script may go on with in vain, and for each that is not restored.
        """
        if not self._saved_at:
            self._find_shared()
        self._name = name
        self._said: list[str] = []
        live, saved = self._dicts[name]
        saved, mark = opened(saved)
        if mark:
            self._placed_as[mark] = live
        _refill(live, self._place_below(saved, live, (), True))
        return self._said

    def _find_shared(self) -> None:
        self._ownership, self._tensors = self._find_ownership(), self._named()
        for live, saved in self._dicts.values():
            kept = (("", each) for _, each in walk(live))
            for mark, here in kept if saved is NOTHING else _meetings(saved, live):
                key, layout = self._ownership.identity(here)
                number = mark.removesuffix(layout)
                self._saved_at.setdefault(key, set()).add(number if number.isdecimal() else object())

    def _placed(self, saved: Any, live: Any, way: Way, may_fill: bool) -> Any:
        """Return the value that belongs at a place, as each of the places of a shared one has it."""
        if live is NOTHING and is_plain(saved):
            return saved
        saved, mark = opened(saved)
        if mark in self._placed_as:
            value = self._placed_as[mark]
            if value is not live and _is_mutable(live) and may_fill and self._ownership.is_seen_beside(live):
                self._say_replaced(
                    way, "is an object of its own here and was one with another value when it was saved"
                )
            return value
        value = self._placed_alone(saved, live, way, may_fill, mark)
        if mark and mark != VIEW and not mark.startswith(ALIAS):
            self._placed_as[mark] = value
            number, at, _ = mark.partition("+")
            memory = self._ownership.identity(value)[0] if at and value is live else object()
            if at and self._memory.setdefault(number, memory) != memory:
                self._said.append(
                    f"{place(self._name, way)} shared memory with another value of a registered dict when it was saved, and does not "
                    "here: training changes each on its own; make it a view again behind guard.restore()"
                )
        return value

    def _placed_alone(self, saved: Any, live: Any, way: Way, may_fill: bool, mark: str) -> Any:
        """Return the value that belongs at a place: the live one, filled or not, or the saved one."""
        owner = self._ownership
        if mark.startswith(ALIAS) and (alias := self._alias(mark, saved)) is not None:
            if isinstance(live, torch.Tensor) and extent(live) == extent(alias):
                return live
            if may_fill and owner.is_seen_beside(live):
                self._say_replaced(way, f"was {mark.lstrip(ALIAS)} itself when it was saved")
            return alias
        alone = (
            len(self._saved_at.get(owner.identity(live)[0], ())) < 2
            and not owner.is_owned(live)
            and not owner.is_view(live)
        )
        # A list of a model's parameters means these; a `state_dict()` may have been replaced by copies of the best weights.
        stays = mark == VIEW or (owner.is_owned(live) and isinstance(live, torch.nn.Parameter))
        fit = fit_of(saved, live, alone=alone, stays=stays)
        if fit is PlaceFit.KEEP:
            return live
        fills = fit is PlaceFit.FILL and may_fill
        if (
            fit is PlaceFit.REPLACE
            and may_fill
            and (owner.is_seen_beside(live) or (mark == VIEW and owner.is_view(live)))
        ):
            self._say_replaced(
                way,
                "is a view of memory that is not registered" if owner.is_view(live) else _why(saved, live),
            )
        if isinstance(saved, torch.Tensor):
            if fills:
                self._said += unlike_layout(place(self._name, way), live, saved)
                copy_into(live, saved)
                return live
            there = isinstance(live, torch.Tensor) and not live.is_meta
            return saved.to(live.device) if there else saved
        if is_array(saved):
            if fills:
                live[...] = saved
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
        saved = self._place_below(saved, live if type(live) is type(saved) else NOTHING, way, may_fill)
        if fills:
            _refill(live, saved)
            return live
        if type(saved) is tuple and type(live) is tuple and len(live) == len(saved):
            return live if all(map(operator.is_, live, saved)) else saved
        return saved

    def _alias(self, mark: str, saved: torch.Tensor) -> torch.Tensor | None:
        """Return the tensor of another registered value; None if it is there no more, or has not come back with the saved value."""
        tensor = self._tensors.get(mark.lstrip(ALIAS))
        if tensor is None or not (_takes(tensor.detach(), saved) and _is_equal(tensor, saved)):
            return None
        return tensor if mark.startswith(ITSELF) else tensor.detach()

    def _place_below(self, saved: Any, live: Any, way: Way, may_fill: bool) -> Any:
        """Return a saved container with each of its values in its place."""
        in_dict = isinstance(saved, dict)

        def put(key: Any, value: Any, here: Any) -> Any:
            if in_dict and (lost := _without_place(value, here)) is not None:
                self._said.append(
                    f"{place(self._name, (*way, key, *lost[0]))} was saved as a {lost[1]}, and no such object is there to take it: "
                    f"{place(self._name, (*way, key))} is not restored; put one there before guard.restore()"
                )
                return here
            if type(value) in ATOMS and not in_dict:
                return value
            return self._placed(value, here, (*way, key), may_fill)

        return placed(saved, live, put)

    def _say_replaced(self, way: Way, why: str) -> None:
        self._said.append(
            f"{place(self._name, way)} {why}, so it cannot take its saved value, and another object is in its place: if the script "
            "holds it elsewhere too, let it read the dict again after guard.restore()"
        )


def _without_place(saved: Any, live: Any) -> tuple[Way, str] | None:
    """Return the first saved object that no live one can take, with its keys and its class. Dicts say so for each of their keys."""
    if live is NOTHING and is_plain(saved):
        return None
    saved, _ = opened(saved)
    if isinstance(saved, SavedObject):
        if live is NOTHING or not objects.fits(saved, live):
            return (), saved.cls
    elif type(saved) in (list, tuple, deque):
        for at, value, here in pairs(saved, live if type(live) is type(saved) else NOTHING):
            if type(value) not in ATOMS and (found := _without_place(value, here)) is not None:
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
