"""Objects that take part in training and that nothing registered holds: schedulers, gradient scalers, averages, loaders.

Nothing refers from what is registered to these, so the garbage collector finds them: 13 ns for each reference in the process. It is asked
at the first two boundaries of a run, and where an optimizer shows a new sign of a scheduler. Existing is no proof. Each kind has one
that no exact script gives, and in doubt nothing is named.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.data.sampler import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from ...checkpoint.format.values.placeholders import SavedObject
from ..inventory.reachable import MACHINERY, children_of, dict_of
from ..inventory.walk import reach, tensors_in
from ..parts.attribute_watch import AttributeWatch
from ..parts.wrappers import is_like_optimizer
from .carried_gradient import version
from .unregistered import few, within
from .weight_copies import FollowedObject, WeightCopies

log = logging.getLogger("spotguard")

#: The boundaries of a run at which the process is searched.
_SEARCHED = (1, 2)
#: Limits of the search in registered objects. Beyond them nothing is named.
_DEPTH, _OBJECTS = 12, 50_000
#: What that search does not enter.
_NOT_HELD = (torch.Tensor, *MACHINERY)
#: Attributes of each module that torch fills, those of them that hold state, and those of optimizers that the search leaves out.
_MODULE, _OF_MODULES = frozenset(vars(nn.Module())), ("_parameters", "_buffers", "_modules")
_OF_OPTIMIZERS = ("state", "param_groups", "defaults", "_optimizer_")
#: Keys in the states of a `StatefulDataLoader`, a gradient scaler, and a scheduler.
_STATE_OF_LOADER = "_iterator_finished"
_OF_SCALER, _OF_SCHEDULER = frozenset({"scale", "growth_factor"}), frozenset({"last_epoch", "_step_count"})
#: A longer list holds data.
_LONG = 200
_SHUFFLES = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)

_AVERAGE = "an average of weights"
_AS = "; add it to spotguard.register(…), as in "
_COPIES = "a copy of weights that training changes"
_COPY = ", unless each turn makes it anew" + _AS + "ema=ema"
_EMA, _SCALER = _AS + "ema=ema", _AS + "scaler=scaler"
_SCHEDULER = ", unless it follows from the step's number" + _AS + "scheduler=scheduler"
_LOADER = ", unless the script seeds each pass and winds it forward; wrap it before the loop, as in loader = spotguard.ResumableLoader(loader), and add that to spotguard.register(…)"


class SavedValues(NamedTuple):
    """The tensors and the trees of a save."""

    tensors: Sequence[torch.Tensor]
    trees: Sequence[Any]

    def has_state(self, keys: Set[str]) -> bool:
        """Return whether a tree has a dict with these keys: a script may save the `state_dict()` of an object without the object."""
        waiting, seen = [*self.trees], 0
        while waiting and seen < _OBJECTS:
            each, seen = waiting.pop(), seen + 1
            if isinstance(each, SavedObject):
                each = each.value
            if isinstance(each, dict):
                if keys <= each.keys():
                    return True
                waiting += each.values()
            elif isinstance(each, (list, tuple)) and len(each) <= _LONG:
                waiting += each
        return False

    def has_values(self, tensor: torch.Tensor) -> bool:
        """Return whether the memory of a tensor, or a copy of it, is among the tensors."""
        for each in (*self.tensors, *tensors_in([*self.trees])):
            if each.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr():
                return True
            if each.shape == tensor.shape and each.device == tensor.device and torch.equal(each, tensor):
                return True
        return False


class _Forgettable(NamedTuple):
    """A class of torch's whose objects are named once they have changed between two looks, twice in a row."""

    what: str
    base: type
    #: Returns what is equal while an object with these attributes stands still; None if nothing depends on it.
    mark: Callable[[dict[str, Any]], Any]
    #: Returns whether a save has its state although nothing registered holds it.
    is_saved: Callable[[Any, SavedValues], bool]
    remedy: str


def _scale_of(scaler: dict[str, Any]) -> Any:
    scale = scaler.get("_scale")
    return None if scale is None or not scaler.get("_enabled") else (id(scale), version(scale))


def _delivered_by(iterator: dict[str, Any]) -> Any:
    """Return the batches of an iterator whose order no restart repeats, also where the script leaves out what is over.

    It is drawn from torch's global generator, or the loader gives a state of its own.
    """
    sampler = iterator.get("_index_sampler")
    if type(sampler) is BatchSampler:
        sampler = dict_of(sampler).get("sampler")
    # A class of the script's own may seed its order.
    drawn = type(sampler) in _SHUFFLES and dict_of(sampler).get("generator") is None
    return iterator.get("_num_yielded") if drawn or "_finished" in iterator else None


def _count_of(average: dict[str, Any]) -> Any:
    count = average.get("_buffers", {}).get("n_averaged")
    return None if count is None else version(count)


def _has_average(average: AveragedModel, saved: SavedValues) -> bool:
    weights = sorted(average.parameters(), key=lambda each: each.numel())
    return any(saved.has_values(each.detach()) for each in weights[-1:])


_KINDS = (
    _Forgettable(
        "a gradient scaler",
        torch.amp.GradScaler,
        _scale_of,
        lambda _, saved: saved.has_state(_OF_SCALER),
        _SCALER,
    ),
    _Forgettable(_AVERAGE, AveragedModel, _count_of, _has_average, _EMA),
    _Forgettable("a loader", _BaseDataLoaderIter, _delivered_by, lambda _, saved: False, _LOADER),
)


class Forgotten:
    """The search for objects that take part in training and are not registered.

    Args:
        values: the registered values, by name.
        boundaries: returns the boundaries of a run since it began; 0 if it was resumed.
        alone: returns whether no optimizer trains anything else in this process.
        saved: returns what a save has: the tensors, and the trees of dicts and of objects with a state of their own.
        attributes: names tensors in the attributes of objects around registered ones, and looks first.
    """

    #: Nothing that it names hangs on the very next boundary.
    unsettled = False

    def __init__(
        self,
        values: Mapping[str, Any],
        boundaries: Callable[[], int],
        alone: Callable[[], bool],
        saved: Callable[[], SavedValues],
        attributes: AttributeWatch,
    ) -> None:
        self._attributes = attributes
        self._values, self._boundaries, self._alone, self._saved = values, boundaries, alone, saved
        like = [(name, value) for name, value in values.items() if is_like_optimizer(value)]
        like += [
            (name, each) for name, value in like for each in within(value) if isinstance(each, Optimizer)
        ]
        self._optimizers = [each for _, each in like]
        self._names = {id(each): name for name, each in like}
        #: The signs that a search has followed, by the id of an optimizer: 1 is torch's mark, and 2 another learning rate.
        self._signs = dict.fromkeys(self._names, 0)
        #: An adapter knows what its framework saves.
        self._adapted = any(hasattr(type(value), "saved_modules") for value in values.values())
        self._told: set[str] = set()
        self.begin()

    def begin(self) -> None:
        """Begin anew: a restore has changed the values."""
        self._rates = {id(each): _rates(each) for each in self._optimizers}
        #: The objects that are followed, by id.
        self._followed: dict[int, _Followed] = {}
        self._copies = WeightCopies(self._values)

    def look(self) -> None:
        """Warn about these objects, in one line for each kind. On the training thread, at a boundary."""
        try:
            self._look()
        except Exception:
            self._adapted, self._optimizers = True, []
            log.debug("the search for objects that are not registered has ended", exc_info=True)

    def _look(self) -> None:
        boundaries = 0 if self._adapted else self._boundaries()
        if boundaries > 1:
            self._copies.look(boundaries)
        schedulers = self._schedulers()
        self._followed = {key: each for key, each in self._followed.items() if each.look()}
        moved = [
            each for each in self._followed.values() if each.row >= 2 and each.kind.what not in self._told
        ]
        alive = [each.value for each in moved]  # another thread may drop them meanwhile
        moved = [each for each, value in zip(moved, alive, strict=True) if value is not None]
        if boundaries in _SEARCHED:
            self._search(first=boundaries == 1)
        owners = few(dict.fromkeys(self._names[id(each.optimizer)] for each in schedulers))
        self._say(f"a scheduler of {owners}", [type(each).__name__ for each in schedulers], _SCHEDULER)
        copied = _COPIES not in self._told and any(self._copies.moved(lambda _: True))
        if not (moved or copied) or not self._alone() or (held := self._held()) is None:
            return
        saved = self._saved()
        self._followed = {key: each for key, each in self._followed.items() if not each.is_in(held)}
        moved = [each for each in moved if not (each.is_in(held) or each.kind.is_saved(each.value, saved))]
        for kind in _KINDS:
            self._say(kind.what, [each.name for each in moved if each.kind is kind], kind.remedy)
        if copied and _AVERAGE not in self._told and not self._attributes.named_tensors:
            copies = self._copies.moved(lambda each: id(each) not in held and not saved.has_values(each))
            self._say(_COPIES, [f"{count} tensors like those of {name}" for name, count in copies], _COPY)

    def _say(self, what: str, names: Iterable[str], remedy: str) -> None:
        """Log a line of a kind, once."""
        if (known := few(dict.fromkeys(names))) and what not in self._told:
            self._told.add(what)
            log.warning(
                "%s is not registered (%s), so a resumed run begins it anew%s [SG425]", what, known, remedy
            )

    def _search(self, *, first: bool) -> None:
        """Follow the objects of the kinds from now on, and at the `first` search tensors too."""
        classes = {kind: [*_classes(kind.base)] for kind in _KINDS}
        # By identity: a class may have a metaclass with code of its own.
        kinds = {id(cls): kind for kind, known in classes.items() for cls in known}
        found = gc.get_referrers(*chain(*classes.values()), *((torch.Tensor, nn.Parameter) if first else ()))
        if first:
            self._copies.follow(found)
        for each in found:
            if id(type(each)) in kinds and id(each) not in self._followed:
                self._followed[id(each)] = _Followed(each, kinds[id(type(each))])

    def _held(self) -> set[int] | None:
        """Return the ids of all that registered objects hold; None in doubt."""
        held = set[int]()
        for value in self._values.values():
            found = [*reached(value)]
            if any(type(each) is dict and _STATE_OF_LOADER in each for each in found):
                # The script saves it itself.
                found += [each.value for each in self._followed.values() if each.has_state]
            if isinstance(value, nn.Module):
                found += value.modules()
            elif len(found) >= _OBJECTS:
                return None
            held |= {*map(id, found)}
        return held

    def _schedulers(self) -> list[LRScheduler]:
        """Return torch's schedulers of registered optimizers, once for each sign of one, and of several in one the outer one.

        torch leaves a mark on an optimizer's `step`, but no reference to the scheduler.
        """
        signed = []
        for each in self._optimizers:
            marked = hasattr(getattr(each, "step", None), "_wrapped_by_lr_sched")
            signs = self._signs[id(each)] | marked | 2 * (_rates(each) != self._rates[id(each)])
            if signs != self._signs[id(each)]:
                signed.append(each)
            self._signs[id(each)] = signs
        held = [one for each in self._values.values() for one in reached(each)] if signed else []
        known = {id(each.optimizer) for each in held if issubclass(type(each), LRScheduler)}
        signed = [each for each in signed if id(each) not in known]
        holders = gc.get_referrers(*signed) if signed else []
        dicts = [each for each in holders if type(each) is dict and "last_epoch" in each]
        if dicts:  # the attributes of an object in a dict, and otherwise the object itself
            holders += gc.get_referrers(*dicts)
        found = {id(each): each for each in holders if issubclass(type(each), LRScheduler)}
        schedulers = [each for each in found.values() if id(dict_of(each).get("optimizer")) in self._names]
        if schedulers and self._saved().has_state(_OF_SCHEDULER):
            return []
        parts = [part for each in schedulers for part in vars(each).values()]
        below = {id(one) for part in parts for one in (part, *within(part, 1))}
        return [each for each in schedulers if id(each) not in below]


class _Followed(FollowedObject):
    """An object of a kind."""

    def __init__(self, value: Any, kind: _Forgettable) -> None:
        super().__init__(value, lambda each: kind.mark(dict_of(each)))
        self.kind = kind

    @property
    def has_state(self) -> bool:
        """Whether it is an iterator of a `StatefulDataLoader`."""
        return "_finished" in dict_of(self.value)

    @property
    def name(self) -> str:
        value = self.value
        data = dict_of(value).get("_dataset", value)
        return type(value).__name__ if data is value else f"of {type(data).__name__}"

    def is_in(self, held: set[int]) -> bool:
        """Return whether registered objects hold it. A loader's iterator belongs to the loader of its sampler."""
        value = self.value
        return not held.isdisjoint({id(value), id(dict_of(value).get("_index_sampler", value))})


def reached(value: Any) -> Iterator[Any]:
    """Yield a registered value and all that it holds, nearest first."""
    yield value
    yield from (each for _, each in reach(value, _inside, _may_hold, depth=_DEPTH, most=_OBJECTS))


def _inside(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, but of modules and optimizers nothing that torch fills and that holds no state."""
    kind, held = type(owner), dict_of(owner)
    if issubclass(kind, nn.Module):
        for name in _OF_MODULES:
            yield from held.get(name, {}).items()
        yield from ((name, each) for name, each in held.items() if name not in _MODULE)
    elif issubclass(kind, Optimizer):
        states: list[Any] = [*held.get("state", {}).values()]
        yield from (item for state in states if type(state) is dict for item in state.items())
        yield from ((name, each) for name, each in held.items() if not name.startswith(_OF_OPTIMIZERS))
    else:
        yield from children_of(owner)


def _may_hold(value: object) -> bool:
    return not issubclass(type(value), _NOT_HELD)


def _classes(base: type) -> Iterator[type]:
    yield base
    derived: list[type] = type.__subclasses__(base)
    for each in derived:
        yield from _classes(each)


def _rates(optimizer: Optimizer) -> list[Any]:
    rates = (group.get("lr") for group in optimizer.param_groups)
    return [getattr(each, "_version", each) for each in rates]
