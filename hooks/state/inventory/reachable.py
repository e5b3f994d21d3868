"""A search for tensors that an object holds and that no checkpoint has.

`state_dict()` of torch's `Optimizer` gives `state` and `param_groups`. A tensor elsewhere in an optimizer is in no
checkpoint, and nothing reports this. Examples are slow weights in an attribute, masters in a closure, and an inner
optimizer. So the search walks all objects that an optimizer holds: attributes, items of containers, cells of
functions, and for other objects the results of `gc.get_referents`.

The search walks only optimizers, and leaves out the values of `EXEMPT`. A model's author decides about its other
tensors. `register_buffer(persistent=False)` declares that `state_dict()` leaves a buffer out. Plain attributes are
mostly masks and tables, so refusing them would refuse most models; `attribute_watch.py` names those that change with each
step. An object with its own `state_dict()` has declared its state. `docs/reference/registered.md` documents all
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
from collections.abc import Collection, Iterable, Iterator
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, Sampler

from ..memory_access import unreadable
from ..sharding.dtensor import local
from .inner_tensors import inner
from .objects import outer_variables
from .walk import ATOMS, reach

log = logging.getLogger("spotguard")

#: The longest path from the object, in attributes, items and cells.
DEPTH = 6
#: The most objects of a search, on top of the saved ones. Walking this many takes 0.1 to 0.3 s; AdamW over 1,000
#: parameters takes 10 ms.
MOST = 50_000
#: Objects for each saved tensor: the tensor, its dict, and the keys that it is stored under.
_EACH = 4

#: Values that the search leaves out, with the reason. docs/reference/registered.md has the same list.
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

SCRATCH = frozenset({"main_grad", "_dummy_overflow_buf", "grad_scale", "found_inf", "defaults"})
#: What belongs to the interpreter or the process, and holds no state of training.
MACHINERY = (type, types.ModuleType, types.CodeType, types.FrameType, weakref.ref, logging.Logger)
_NOT_OWNED = (
    *MACHINERY,
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
    for path, child in reach(root, children_of, enters, depth=DEPTH, most=most, known=known):
        kind, found = type(child), found + 1
        if issubclass(kind, torch.Tensor):
            if may_be_state(child) and not saved.has(child):
                paths.append(name + path)
        elif issubclass(kind, Optimizer) or (issubclass(kind, torch.amp.GradScaler) and child.is_enabled()):
            paths.append(f"{name}{path} ({kind.__name__})")
        elif issubclass(kind, nn.Module):
            lost = [key for key, each in _state_of(child) if may_be_state(each) and not saved.has(each)]
            paths += [f"{name}{path}.{key}" for key in lost]
    if found >= most:
        log.info(
            "%s holds more than %d objects: spotguard searched only the nearest for its state", name, most
        )
    return paths


def may_be_state(tensor: torch.Tensor) -> bool:
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


_SEQUENCES = (list, tuple, set, frozenset, deque)


def children_of(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield each object that the owner holds and that may hold more or change, with its step in a path."""
    kind = type(owner)
    if issubclass(kind, torch.Tensor):
        # Read the tensor's attributes only if it has some: access to `__dict__` would create one. Its hooks are elsewhere.
        for each in gc.get_referents(owner):
            if type(each) is dict:
                yield from _attributes(each)
    elif issubclass(kind, dict):
        for key, value in [*dict.items(owner)]:  # a class of the script may go over its items otherwise
            if type(key) not in ATOMS:
                yield " (a key)", key
                yield "[…]", value
            elif type(value) not in ATOMS and key not in SCRATCH:
                yield f"[{key!r}]", value
    elif issubclass(kind, _SEQUENCES):
        base: Any = next(each for each in _SEQUENCES if issubclass(kind, each))
        for number, value in enumerate([*base.__iter__(owner)]):
            if type(value) not in ATOMS:
                yield f"[{number}]", value
    elif kind is types.FunctionType:
        yield from ((f"({key})", value) for key, value in outer_variables(owner).items())
        for values in (owner.__defaults__, owner.__kwdefaults__, owner.__dict__):
            yield "(…)", values
    else:
        attributes = attributes_of(owner)
        yield from _attributes(attributes)
        named = {id(dict_of(owner)), *map(id, attributes.values())}
        for value in gc.get_referents(owner):
            if id(value) not in named:
                yield ".…", value


def dict_of(owner: object) -> dict[str, Any]:
    """Return an object's own attributes. None of its code runs."""
    try:
        attributes = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return attributes if type(attributes) is dict else {}


def attributes_of(owner: object) -> dict[str, Any]:
    """Return the same, with those in the slots of its class."""
    attributes, kind = dict_of(owner), cast(Any, type(owner))
    if not (slots := _slots(kind)):
        return attributes
    held = dict(attributes)
    for name, slot in slots.items():
        try:
            held[name] = slot.__get__(owner)
        except AttributeError:
            continue  # it is not set
    return held


@functools.lru_cache(maxsize=1024)
def _slots(kind: Any) -> dict[str, types.MemberDescriptorType]:
    """Return the slots that a class of Python declares, by name. A metaclass's code does not run."""
    found: dict[str, types.MemberDescriptorType] = {}
    for each in type.__dict__["__mro__"].__get__(kind):
        table = type.__dict__["__dict__"].__get__(each)
        if "__slots__" in table:
            found |= {
                name: value for name, value in table.items() if type(value) is types.MemberDescriptorType
            }
    return found


def _attributes(table: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in list(table.items()):
        if type(value) in ATOMS or key in SCRATCH:
            continue
        if not (key.startswith("_optimizer_") and key.endswith("_hooks")):
            yield f".{key}", value
