"""Attributes that change during training and that no checkpoint has: of modules, of optimizers, and of objects around them.

A table is made once, and state changes with each step. So an attribute is named after two changes in a row, each between two
looks. A table that grows has another shape, and begins anew. A value that is only shown is no state, nor a number that a script
sets from the step's number, nor what each turn sets before it reads it: the source of the object's own steps must tell.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import nn

from ..inventory import objects
from ..inventory.attribute_uses import uses
from ..inventory.call_stack import attribute_sets
from ..inventory.reachable import SCRATCH, SavedTensors, may_be_state
from ..inventory.walk import tensors_in
from ..memory_access import unreadable
from .loaders.generators import global_generators

log = logging.getLogger("spotguard")

#: Attributes of optimizers that are saved, or are torch's own counters.
_NOT_COUNTS = frozenset({"_step_count", "_opt_called", "state", "param_groups", "defaults"})
#: Attributes of each module that torch fills, and the mode, which scripts set before each use.
_MODULE = frozenset(vars(nn.Module()))
#: The newest items of a container whose numbers are compared, and about as many items of an array.
_LAST, _ITEMS = 16, 1024
#: A container with more items holds data: its tensors are not looked at.
_LONG = 10_000
#: Methods of modules with which a class decides itself what is saved.
_SAVING = ("get_extra_state", "state_dict", "_save_to_state_dict")

_IN_OPTIMIZER = "keep it in param_groups, or give its class a state_dict() of its own"
_AROUND = "register that object, a wrapper in its optimizer's place, with a state_dict() and a load_state_dict() that include it"
_DRAWN_FROM = "register a dict that holds the generator, as in own={'generator': generator}"
_IN_MODULE = "if that matters, use a persistent buffer, or set it from the step's number in each turn"


class Attribute(NamedTuple):
    """An attribute of an object with a name, and what to do if no checkpoint has it."""

    name: str
    owner: Any
    key: str
    value: Any
    remedy: str
    #: The registered module that has the owner, and the owner's name in it.
    root: Any = None
    prefix: str = ""


class AttributeWatch:
    """The attributes of some objects from look to look.

    Args:
        optimizers: the optimizers, and wrappers that are saved as those inside them. Their tensors are refused (`reachable.py`).
        modules: the modules whose `state_dict()` is torch's, by registered name.
        saved: returns the tensors that a checkpoint has, and all buffers.
        registered: the registered values that are neither. A container among them, or in one of them, is saved.
    """

    #: Nothing that it names hangs on the very next boundary.
    unsettled = False

    def __init__(
        self,
        optimizers: Sequence[tuple[str, Any]],
        modules: Mapping[str, nn.Module],
        saved: Callable[[], SavedTensors],
        registered: Collection[Any],
    ) -> None:
        self._optimizers, self._modules = optimizers, modules
        self._saved, self._registered = saved, registered
        #: Objects around registered ones, by the name for messages, and the shapes that state in them has.
        self._around: dict[str, tuple[Any, frozenset[torch.Size]]] = {}
        owners = (value for value in registered if hasattr(type(value), "saved_modules"))
        self._elsewhere = {id(each) for value in owners for each in value.saved_modules}
        #: The names of objects that a warning has named. One line an object is enough.
        self._told: set[str] = set()
        #: Whether a warning has named tensors.
        self.named_tensors = False
        self.begin()

    def add(self, owner: object, shapes: frozenset[torch.Size] = frozenset()) -> None:
        """Watch an object around registered ones from now on.

        Args:
            owner: the object.
            shapes: of all that it trains, if it does. Among so much else, only tensors in all of these shapes are state.
        """
        if all(owner is not each for each, _ in self._around.values()):
            kind = type(owner).__name__
            name = f"{kind} {len(self._around) + 1}" if kind in self._around else kind
            self._around[name] = owner, shapes
            self._seen |= {key: mark for key, mark, _ in _marks(_around(name, owner))}

    def begin(self) -> None:
        """Begin anew: a restore has changed the values."""
        self._seen = {key: mark for key, mark, _ in _marks(self._attributes())}
        self._row: dict[Any, int] = {}

    def look(self) -> None:
        """Warn about what has changed twice in a row, in one line, and once for each object. On the training thread."""
        before, self._seen, found = self._seen, {}, []
        for key, mark, each in _marks(self._attributes()):
            self._seen[key] = mark
            self._row[key] = self._row.get(key, 0) + 1 if before.get(key, mark) != mark else 0
            if self._row[key] == 2 and each.name not in self._told and self._is_lost(each):
                found.append(each)
        self._told |= {each.name for each in found}
        self.named_tensors = self.named_tensors or any(True for each in found for _ in _tensors(each.value))
        if found:
            log.warning(
                "%s.%s%s changes during training, and no checkpoint has it: a resumed run begins with its initial value; %s [SG425]",
                found[0].name,
                found[0].key,
                f" (and {len(found) - 1} more)" if found[1:] else "",
                _DRAWN_FROM if objects.is_generator(found[0].value) else found[0].remedy,
            )

    def _attributes(self) -> Iterator[Attribute]:
        for name, owner in self._optimizers:
            for key, value in getattr(owner, "__dict__", {}).items():
                if key not in _NOT_COUNTS and not isinstance(value, torch.Tensor):
                    yield Attribute(name, owner, key, value, _IN_OPTIMIZER)
        for name, (owner, _) in [*self._around.items()]:
            yield from _around(name, owner)
        for name, module in self._modules.items():
            for prefix, each in module.named_modules():
                kind: Any = type(each)
                if not _declares(kind) and id(each) not in self._elsewhere:
                    loose = {key: each._buffers[key] for key in each._non_persistent_buffers_set}
                    for key, value in (vars(each) | loose).items():
                        if key not in _MODULE:
                            place = f"{name}.{prefix}".rstrip(".")
                            yield Attribute(place, each, key, value, _IN_MODULE, module, prefix)

    def _is_lost(self, each: Attribute) -> bool:
        """Return whether the owner's steps read what they have changed, and no checkpoint has it.

        Numbers that a script sets are the script's. Tensors may be changed under other names, and what a wrapper averages is for others.
        """
        own = uses(each.owner.__class__)
        reads, changes, grows = (
            each.key in own.read or not own.read,
            each.key in own.changed,
            each.key in own.grown,
        )
        if _is_given(each):
            return False
        if objects.is_generator(each.value):  # a draw changes it
            elsewhere = (*self._registered, *global_generators())
            return not (any(each.value is one for one in elsewhere) or self._has_container(each.value))
        shapes = self._around.get(each.name, (None, frozenset()))[1]
        tensors = [*_tensors(each.value)]
        if not tensors:
            if shapes or self._has_container(each.value):
                return False
            if reads and changes:
                return True
            grown, anew = attribute_sets(each.key, each.owner.__class__)
            # What something sets otherwise may be set anew in each turn, or by what was restored.
            return not anew and (own.grows_beside(each.key) or (reads and grown))
        loose, kept = getattr(each.owner, "_non_persistent_buffers_set", ()), self._saved()
        unsaved = {t.shape for t in tensors if each.key in loose or not kept.has(t)}
        return bool(unsaved) and shapes <= unsaved and (reads or (grows and each.remedy is _AROUND))

    def _has_container(self, value: Any) -> bool:
        held = (each if isinstance(each, dict) else objects.attributes(each) for each in self._registered)
        same = any(value is one for each in held for one in (each, *each.values()))
        return same and not isinstance(value, (int, float))


@functools.cache
def _declares(kind: type[nn.Module]) -> bool:
    """Return whether a class decides itself what is saved, or is torch's, which keeps no state that it does not save."""
    own = any(getattr(kind, name) is not getattr(nn.Module, name) for name in _SAVING)
    return own or kind.__module__.startswith("torch.nn.")


def _is_given(each: Attribute) -> bool:
    """Return whether a module above sets the attribute before each use of its owner, by name or as an item of a list."""
    names = each.prefix.split(".") if each.prefix else []
    given = False
    for at in range(len(names)):
        holder: Any = each.root.get_submodule(".".join(names[:at]))
        keys = tuple("*" if name.isdigit() else name for name in names[at:])
        above = uses(holder.__class__)
        if each.key in above.taken.get(keys, ()):
            return False
        given |= each.key in above.given.get(keys, ())
    return given


def _around(name: str, owner: object) -> Iterator[Attribute]:
    for key, value in objects.attributes(owner).items():
        if key not in SCRATCH and key != "param_groups":
            yield Attribute(name, owner, key, value, _AROUND)


def _marks(attributes: Iterable[Attribute]) -> Iterator[tuple[Any, Any, Attribute]]:
    """Yield each attribute with what tells it from others, its shapes included, and what is equal while it has not changed."""
    for each in attributes:
        try:
            shapes, mark = [t.shape for t in _tensors(each.value)], mark_of(each.value)
        except Exception:  # noqa: BLE001 - a circle, a container's own code, or another thread changes it
            continue
        if mark:
            yield (each.name, each.key, *shapes), mark, each


def mark_of(value: Any) -> list[Any]:
    """Return what is equal while the tensors and the newest numbers in a value stand still; nothing if it has none."""
    mark: list[Any] = [(id(t), t._version, 0 if unreadable(t) else t.data_ptr()) for t in _tensors(value)]
    return [*mark, numbers] if (numbers := _numbers(value)) else mark


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if not (isinstance(value, (list, dict, deque)) and len(value) > _LONG):
        for tensor in tensors_in(value):
            if may_be_state(tensor) and not tensor.is_inference():
                yield tensor


def _numbers(value: Any, depth: int = 2) -> tuple[Any, ...]:
    """Return a number, or the last ones in a container (as in a history of norms) and its length; () if there is none."""
    if type(value) in (bool, int, float):
        return (value,) if value == value else ()
    if objects.is_generator(value):
        state = objects.generator_state(value)
        return (hash(state.numpy().tobytes() if isinstance(state, torch.Tensor) else repr(state)),)
    if objects.is_array(value, scalars=True):
        return (hash(value.flat[:: 1 + value.size // _ITEMS].tobytes()),)
    if not depth or not isinstance(value, (list, tuple, deque, dict)):
        return ()
    held = islice(reversed(value.values() if isinstance(value, dict) else value), _LAST)
    numbers = [number for each in held for number in _numbers(each, depth - 1)]
    return (len(value), *numbers) if numbers else ()
