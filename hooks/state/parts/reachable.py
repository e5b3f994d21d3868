"""A search for tensors that an object holds and that no checkpoint has.

`state_dict()` of torch's `Optimizer` gives `state` and `param_groups`. A tensor elsewhere in an optimizer is in no
checkpoint, and nothing reports this. Examples are slow weights in an attribute, masters in a closure, and an inner
optimizer. So the search walks all objects that an optimizer holds: attributes, items of containers, cells of
functions, and for other objects the results of `gc.get_referents`.

The search walks only optimizers, and leaves out the values of `EXEMPT`. A model's author decides about its other
tensors. `register_buffer(persistent=False)` declares that `state_dict()` leaves a buffer out. Plain attributes are
mostly masks and tables, so refusing them would refuse most models. If such a tensor, or a number, changes with each step, a
warning reports it. An object with its own `state_dict()` has declared its state. `docs/how-to/training-script.md` documents all
three cases.
"""

from __future__ import annotations

import functools
import gc
import logging
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, Sampler

from ..inventory import objects
from ..inventory.inner_tensors import inner
from ..inventory.walk import ATOMS, reach, tensors_in
from ..memory_access import unreadable
from ..sharding.dtensor import local

log = logging.getLogger("spotguard")

#: The longest path from the object, in attributes, items and cells.
DEPTH = 6
#: The most objects of a search, on top of the saved ones. Walking this many takes 0.1 to 0.3 s; AdamW over 1,000
#: parameters takes 10 ms.
MOST = 50_000
#: Objects for each saved tensor: the tensor, its dict, and the keys that it is stored under.
_EACH = 4

#: Values that the search leaves out, with the reason. docs/how-to/training-script.md has the same list.
EXEMPT = {
    "gradients: `.grad` and `.main_grad`": "their values do not count at a boundary",
    "autograd graphs": "they belong to a running step",
    "tensors without elements or without memory": "there is nothing to save",
    "hooks of the optimizer": "whoever registered a hook owns what it holds",
    "`defaults` of the optimizer": "`param_groups` has the values in use",
    "`_dummy_overflow_buf`, `grad_scale`, `found_inf`": "scratch memory of fused kernels",
    "compiled functions, caches of `functools`": "they are created again",
    "data loaders, datasets, samplers, schedulers, gradient scalers": "you register those that have a state",
    "buffers of a module that are not persistent": "its author has declared that they are no state",
    "classes, Python modules, globals, loggers, threads, weak references": "the optimizer does not own what they hold",
    "device meshes and process groups": "they describe where tensors are",
}

_SCRATCH = frozenset({"main_grad", "_dummy_overflow_buf", "grad_scale", "found_inf", "defaults"})
_NOT_OWNED = (
    type,
    types.ModuleType,
    types.CodeType,
    types.FrameType,
    weakref.ref,
    logging.Logger,
    logging.Handler,
    threading.Thread,
    functools._lru_cache_wrapper,
    torch.Generator,
    DataLoader,
    Dataset,
    Sampler,
    LRScheduler,
    torch.amp.GradScaler,
    Optimizer,
    nn.Module,
)
_PLAIN = (torch.Tensor, nn.Parameter)


class SavedTensors:
    """The tensors that a checkpoint has. References to them keep other tensors from reusing their ids.

    Args:
        tensors: live tensors; their gradients count as saved too.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = {id(tensor): tensor for tensor in tensors}
        #: The number of saved bytes by the address of a storage. It is computed for the first tensor not among those above.
        self._bytes: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._tensors)

    def has(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor's bytes are saved.

        They are if the tensor itself is saved, or if saved tensors are views of its memory (except for some padding).
        """
        if id(tensor) in self._tensors:
            return True
        here = local(tensor)
        if inside := inner(here):
            return all(self.has(each.tensor) for each in inside)
        if unreadable(here):
            return False
        self._bytes = self._bytes or self._count()
        return 8 * self._bytes.get(here.untyped_storage().data_ptr(), 0) >= 7 * here.nbytes

    def _count(self) -> dict[int, int]:
        saved_bytes: dict[int, int] = {}
        pieces: set[tuple[int, int]] = set()
        for tensor in self._tensors.values():
            for each in (tensor, tensor.grad if tensor.is_leaf else None):
                here = None if each is None else local(each)
                if (
                    here is not None
                    and not unreadable(here)
                    and (piece := (here.data_ptr(), here.nbytes)) not in pieces
                ):
                    pieces.add(piece)
                    start = here.untyped_storage().data_ptr()
                    saved_bytes[start] = saved_bytes.get(start, 0) + here.nbytes
        return saved_bytes


#: Attributes of optimizers whose numbers are saved, or are torch's own counters.
_NOT_COUNTS = frozenset({"_step_count", "_opt_called", "state", "param_groups", "defaults"})
#: The newest items of a container whose numbers are compared.
_LAST = 8


class Changing(Protocol):
    """A watch on values that may be state and that no checkpoint has."""

    def begin(self) -> None:
        """Begin anew: a restore has changed the values."""
        ...

    def look(self) -> None:
        """Warn about what has changed since the last look. On the training thread."""
        ...


class ChangingValues:
    """Values outside the saved state that may be scratch or state. A value that changes repeatedly causes a warning.

    Args:
        values: returns the current values, by the name for the warning.
        times: a warning follows this many changes in a row, each between one call of `look` and the next.
        message: the warning, with a placeholder for the name.
    """

    def __init__(self, values: Callable[[], dict[str, Any]], times: int, message: str) -> None:
        self._values, self._times, self._message = values, times, message
        #: Paths of objects that a warning has named. One line an object is enough.
        self._told: set[str] = set()
        self.begin()

    def begin(self) -> None:
        """Begin anew: a restore has changed the values."""
        self._seen = self._values()
        self._row: dict[str, int] = {}

    def look(self) -> None:
        """Warn about values that have changed often enough, in one line, and once per object that holds them."""
        now, told = self._values(), []
        for name, value in now.items():
            in_a_row = self._row.get(name, 0)
            if in_a_row < self._times:
                self._row[name] = in_a_row + 1 if name in self._seen and self._seen[name] != value else 0
                if self._row[name] == self._times and name.rpartition(".")[0] not in self._told:
                    told.append(name)
        self._told |= {name.rpartition(".")[0] for name in told}
        self._seen = now
        if told:
            log.warning(self._message, told[0] + (f" (and {len(told) - 1} more)" if told[1:] else ""))


def counts(owners: Sequence[tuple[str, object]]) -> ChangingValues:
    """Return a watch on the numbers that optimizers keep in attributes: no `state_dict()` of torch's has them.

    Args:
        owners: the optimizers and the wrappers around them, each with its registered name.
    """

    def values() -> dict[str, Any]:
        return {
            f"{name}.{key}": numbers
            for name, owner in owners
            for key, value in _dict_of(owner).items()
            if key not in _NOT_COUNTS and (numbers := _numbers(value))
        }

    return ChangingValues(
        values,
        1,
        "%s changes during training and is in no state_dict(), so it is not saved: a resumed run begins "
        "with its initial value; keep it in param_groups, or give its class a state_dict() of its own [SG425]",
    )


def _numbers(value: Any, depth: int = 2) -> tuple[Any, ...]:
    """Return a number, or the last ones in a container (as in a history of norms) and its length; () if there is none."""
    if type(value) in (int, float):
        return (value,)
    if not depth or not isinstance(value, (list, tuple, deque, dict)):
        return ()
    held = islice(reversed(value.values() if isinstance(value, dict) else value), _LAST)
    numbers = [number for each in held for number in _numbers(each, depth - 1)]
    return (len(value), *numbers) if numbers else ()


def others_keep(
    owners: Mapping[str, object], saved: Callable[[], SavedTensors], registered: Collection[object]
) -> ChangingValues:
    """Return a watch on what objects around registered ones keep and no checkpoint has: tensors, and containers of numbers.

    A bare number there is mostly shown (the last norm) or follows from the step's number.

    Args:
        owners: the objects, by the names of their classes. Training may add to them.
        saved: returns the tensors that a checkpoint has.
        registered: the registered values; containers among them and in them are saved.
    """

    def values() -> dict[str, Any]:
        found = {}
        kept = saved() if owners else SavedTensors(())
        known = {id(each) for value in registered if owners for each in (value, *_held(value))}
        for name, owner in owners.items():
            for key, value in objects.attributes(owner).items():
                tensors = () if key in _SCRATCH or key == "param_groups" else tensors_in(value)
                try:
                    forms = [
                        (id(t), 0 if t.is_inference() else t._version)
                        for t in tensors
                        if _counts(t) and not kept.has(t)
                    ]
                    own = isinstance(value, (list, deque, dict)) and id(value) not in known
                    numbers = _numbers(value) if own and key not in _NOT_COUNTS else ()
                except RuntimeError:  # a circle, or another thread changes it
                    continue
                if forms or numbers:
                    found[f"{name}.{key}"] = (forms, numbers)
        return found

    return ChangingValues(
        values,
        1,
        "%s changes during training, in an object around a registered one that is not registered, so no checkpoint has it: a resumed "
        "run begins with its initial value; register that object, a wrapper in its optimizer's place, with a state_dict() and a "
        "load_state_dict() that include it [SG425]",
    )


def _held(value: object) -> Iterable[object]:
    return (value if isinstance(value, dict) else objects.attributes(value)).values()


def attributes(modules: Mapping[str, nn.Module], saved: Collection[object] = ()) -> ChangingValues:
    """Return a watch on what modules keep and `state_dict()` leaves out: tensors and numbers in attributes, and buffers that
    are not persistent.

    A table is made once, and state changes with each step. The watch waits for two changes in a row: tables are made
    in the first forward, or grow. It leaves out `training`, which scripts set before each use, and modules that save more
    than tensors (`get_extra_state`).

    Args:
        modules: by registered name, the modules whose `state_dict()` is torch's.
        saved: modules inside them whose attributes another registered value saves.
    """
    known = {*map(id, saved)}

    def values() -> dict[str, Any]:
        return {
            f"{name}.{prefix}.{key}".replace("..", "."): form
            for name, module in modules.items()
            for prefix, each in module.named_modules()
            if id(each) not in known and type(each).get_extra_state is nn.Module.get_extra_state
            for key, value in (*vars(each).items(), *each._buffers.items())
            if key != "training" and (key not in each._buffers or key in each._non_persistent_buffers_set)
            if (form := _form(value)) is not None
        }

    return ChangingValues(
        values,
        2,
        "%s changes during training and state_dict() leaves it out, so it is not saved: a resumed run begins with "
        "its initial value; if that matters, use a persistent buffer, or set it from the step's number in each turn",
    )


def _form(value: Any) -> Any:
    """Return what is equal while a tensor or a number has not changed; None for other values, and for numbers that are no numbers."""
    if type(value) in (bool, int, float):
        return value if value == value else None
    if not isinstance(value, torch.Tensor) or unreadable(value) or not _counts(value) or value.is_inference():
        return None
    return id(value), value._version, value.data_ptr()


def unsaved(name: str, root: object, saved: SavedTensors, known: Collection[int]) -> list[str]:
    """Return the paths to tensors, optimizers and scalers that `root` holds and no checkpoint has; nearest first.

    Args:
        name: the registered name of `root`.
        root: the object to search.
        saved: the tensors that a checkpoint has.
        known: ids of objects that are registered separately.
    """
    paths: list[str] = []
    exempt: dict[type, bool] = {}

    def enters(child: Any) -> bool:
        if (kind := type(child)) not in exempt:
            exempt[kind] = _exempt(kind)
        return not exempt[kind] and not _is_compiled(child)

    most, found = MOST + _EACH * len(saved), len(known)
    for path, child in reach(root, _children, enters, depth=DEPTH, most=most, known=known):
        kind, found = type(child), found + 1
        if issubclass(kind, torch.Tensor):
            if _counts(child) and not saved.has(child):
                paths.append(name + path)
        elif issubclass(kind, Optimizer) or (issubclass(kind, torch.amp.GradScaler) and child.is_enabled()):
            paths.append(f"{name}{path} ({kind.__name__})")
        elif issubclass(kind, nn.Module):
            lost = [key for key, each in _state_of(child) if _counts(each) and not saved.has(each)]
            paths += [f"{name}{path}.{key}" for key in lost]
    if found >= most:
        log.info(
            "%s holds more than %d objects: spotguard searched only the nearest for its state", name, most
        )
    return paths


def _counts(tensor: torch.Tensor) -> bool:
    """Return whether the tensor has bytes that may be state."""
    return tensor.numel() > 0 and not tensor.is_meta and tensor.grad_fn is None


def _state_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a module's parameters and persistent buffers."""
    yield from module.named_parameters()
    for prefix, each in module.named_modules():
        for key, buffer in each.named_buffers(recurse=False):
            if key not in each._non_persistent_buffers_set:
                yield f"{prefix}.{key}".lstrip("."), buffer


def _exempt(kind: type) -> bool:
    """Return whether the contents of a class's objects are not state, or belong to another owner."""
    if issubclass(kind, torch.Tensor):
        return kind not in _PLAIN  # a subclass is saved on its own, or refused as a whole
    if kind.__module__.startswith(
        ("spotguard.", "torch._dynamo", "torch._inductor", "torch.distributed.device_mesh")
    ):
        return True
    return issubclass(kind, (*_NOT_OWNED, torch.autograd.graph.Node))


def _is_compiled(child: object) -> bool:
    return type(child) is types.FunctionType and "_torchdynamo_orig_callable" in child.__dict__


def _children(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield each object that the owner holds, with its step in a path."""
    kind = type(owner)
    if issubclass(kind, torch.Tensor):
        # Read the tensor's attributes only if it has some: access to `__dict__` would create one. Its hooks are elsewhere.
        for each in gc.get_referents(owner):
            if type(each) is dict:
                yield from _attributes(each)
    elif issubclass(kind, dict):
        for key, value in list(owner.items()):
            if type(key) not in ATOMS:
                yield " (a key)", key
                yield "[…]", value
            elif key not in _SCRATCH:
                yield f"[{key!r}]", value
    elif issubclass(kind, (list, tuple, set, frozenset, deque)):
        for number, value in enumerate(list(owner)):
            yield f"[{number}]", value
    elif kind is types.FunctionType:
        for key, cell in zip(owner.__code__.co_freevars, owner.__closure__ or (), strict=False):
            for value in gc.get_referents(cell):
                yield f"({key})", value
        for values in (owner.__defaults__, owner.__kwdefaults__, owner.__dict__):
            yield "(…)", values
    else:
        attributes = _dict_of(owner)
        yield from _attributes(attributes)
        named = {id(attributes), *map(id, attributes.values())}
        for value in gc.get_referents(owner):
            if id(value) not in named:
                yield ".…", value


def _dict_of(owner: object) -> dict[str, Any]:
    try:
        attributes = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return attributes if type(attributes) is dict else {}


def _attributes(table: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in list(table.items()):
        if key not in _SCRATCH and not (key.startswith("_optimizer_") and key.endswith("_hooks")):
            yield f".{key}", value
