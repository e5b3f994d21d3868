"""Which tensors an object holds that no checkpoint has.

`state_dict()` of torch's `Optimizer` gives `state` and `param_groups`. A tensor that hangs elsewhere in an optimizer is in no
checkpoint, and nobody notices: slow weights in an attribute, masters in a closure, an inner optimizer. So everything that an
optimizer holds is walked: attributes, items of containers, cells of functions, and what `gc.get_referents` gives of the rest.

Only optimizers are walked, and what stands in `EXEMPT` is left out. A model's other tensors are left out by its author:
`register_buffer(persistent=False)` says that `state_dict()` is not to have one, and plain attributes are mostly masks and
tables, so that to refuse them would refuse most models. One that changes with each step is told of in a warning. Objects with
a `state_dict()` of their own have said what their state is. `docs/training-script.md` says all three.
"""

from __future__ import annotations

import functools
import gc
import logging
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, Sampler

from ..memory_access import gap
from ..sharding.dtensor import local

log = logging.getLogger("spotguard")

#: Steps from the object: attribute, item, cell.
DEPTH = 6
#: Objects that are looked at beside what is saved. Walking so many takes 0.1 to 0.3 s; AdamW over 1,000 parameters, 10 ms.
MOST = 50_000
#: Objects for each tensor that is saved: itself, its dict, and the words it is kept under.
_EACH = 4

#: What is left out, and why. The same list stands in docs/training-script.md.
EXEMPT = {
    "gradients: `.grad` and `.main_grad`": "a boundary has none that count",
    "autograd graphs": "they belong to a step under way",
    "tensors without elements or without memory": "there is nothing to save",
    "hooks of the optimizer": "what a hook holds belongs to whoever registered it",
    "`defaults` of the optimizer": "`param_groups` has what of them is used",
    "`_dummy_overflow_buf`, `grad_scale`, `found_inf`": "scratch of fused kernels, written anew at each step",
    "compiled functions, caches of `functools`": "they are made again",
    "data loaders, datasets, samplers, schedulers, gradient scalers": "you register those that have a state",
    "buffers of a module that are not persistent": "its author has said that they are no state",
    "classes, Python modules, globals, loggers, threads, weak references": "the optimizer does not own what they hold",
    "device meshes and process groups": "they say where tensors lie",
}

_SCRATCH = frozenset({"main_grad", "_dummy_overflow_buf", "grad_scale", "found_inf", "defaults"})
_ATOMS = frozenset(
    {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, range}
)
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
)
_PLAIN = (torch.Tensor, nn.Parameter)


class SavedTensors:
    """The tensors that a checkpoint has. They are held, so that no other tensor takes the id of one.

    Args:
        tensors: live ones; their gradients count as theirs.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = {id(tensor): tensor for tensor in tensors}
        #: By the address of a storage: how much of it is saved. Asked for when a tensor is none of these.
        self._bytes: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._tensors)

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether these are its bytes: itself, or the memory that the saved ones are views of (but for some padding)."""
        if id(tensor) in self._tensors:
            return True
        here = local(tensor)
        if gap(here):
            return False
        self._bytes = self._bytes or self._count()
        return 8 * self._bytes.get(here.untyped_storage().data_ptr(), 0) >= 7 * here.nbytes

    def _count(self) -> dict[int, int]:
        found: dict[int, int] = {}
        pieces: set[tuple[int, int]] = set()
        for tensor in self._tensors.values():
            for each in (tensor, tensor.grad if tensor.is_leaf else None):
                here = None if each is None else local(each)
                if (
                    here is not None
                    and not gap(here)
                    and (piece := (here.data_ptr(), here.nbytes)) not in pieces
                ):
                    pieces.add(piece)
                    start = here.untyped_storage().data_ptr()
                    found[start] = found.get(start, 0) + here.nbytes
        return found


#: Numbers that torch counts on optimizers itself.
_TORCHS_COUNTS = frozenset({"_step_count", "_opt_called"})


class ChangingValues:
    """Values beside the state, which may be scratch, and may be state: one that changes again and again is told of.

    Args:
        values: as they are now, by how they are said.
        times: between so many looks in a row it changes, before it is told of.
        message: with a place for its name.
    """

    def __init__(self, values: Callable[[], dict[str, Any]], times: int, message: str) -> None:
        self._values, self._times, self._message = values, times, message
        self._seen = values()
        self._row: dict[str, int] = {}

    def look(self) -> None:
        """Tell of what has changed often enough, each once."""
        now = self._values()
        for name, value in now.items():
            told = self._row.get(name, 0)
            if told < self._times:
                self._row[name] = told + 1 if name in self._seen and self._seen[name] != value else 0
                if self._row[name] == self._times:
                    log.warning(self._message, name)
        self._seen = now


def counts(owners: Mapping[str, object]) -> ChangingValues:
    """Numbers that optimizers keep in attributes: they are in no `state_dict()` of torch's.

    Args:
        owners: by registered name.
    """

    def values() -> dict[str, Any]:
        return {
            f"{name}.{key}": value
            for name, owner in owners.items()
            for key, value in _dict_of(owner).items()
            if type(value) in (int, float) and key not in _TORCHS_COUNTS
        }

    return ChangingValues(
        values,
        1,
        "%s changes as training goes on and is in no state_dict(), so it is not saved: a resumed run begins with what it is at "
        "the start; keep it in param_groups, or give its class a state_dict() of its own",
    )


def attributes(modules: Mapping[str, nn.Module]) -> ChangingValues:
    """Tensors that modules keep in plain attributes: a table is made once, and state changes with each step. Twice in a row,
    for tables are made in the first forward, or grow.

    Args:
        modules: by registered name, those whose `state_dict()` is torch's.
    """

    def values() -> dict[str, Any]:
        return {
            f"{name}.{prefix}.{key}".replace("..", "."): (id(value), value._version, value.data_ptr())
            for name, module in modules.items()
            for prefix, each in module.named_modules()
            for key, value in vars(each).items()
            if isinstance(value, torch.Tensor)
            and not gap(value)
            and _counts(value)
            and not value.is_inference()
        }

    return ChangingValues(
        values,
        2,
        "%s is a tensor that changes as training goes on and that state_dict() leaves out, so it is not saved: a resumed run "
        "begins with what it is at the start; where that matters, use register_buffer()",
    )


#: An object on the way, the one that led to it, and how: ".attribute", "['key']", "[0]".
_Way = tuple[Any, "_Way | None", str]


def unsaved(name: str, root: object, saved: SavedTensors, known: Collection[int]) -> list[str]:
    """The ways to tensors, and to other optimizers and scalers, that `root` holds and no checkpoint has; nearest first.

    Args:
        name: what `root` is registered as.
        saved: the tensors that a checkpoint has.
        known: ids of objects that are registered by themselves.
    """
    found: list[str] = []
    exempt: dict[type, bool] = {}
    seen = {id(root), *known}
    line: deque[tuple[_Way, int]] = deque([((root, None, name), 0)])
    most = MOST + _EACH * len(saved)
    while line:
        if len(seen) > most:
            log.info(
                "%s holds more than %d objects: only the nearest were looked at for its state", name, most
            )
            break
        way, depth = line.popleft()
        for child, piece in _children(way[0]):
            kind = type(child)
            if kind in _ATOMS or id(child) in seen:
                continue
            seen.add(id(child))
            here: _Way = (child, way, piece)
            if issubclass(kind, torch.Tensor):
                if _counts(child) and not saved.has(child):
                    found.append(_said(here))
            elif issubclass(kind, Optimizer) or (
                issubclass(kind, torch.amp.GradScaler) and child.is_enabled()
            ):
                found.append(f"{_said(here)} ({kind.__name__})")
                continue
            elif issubclass(kind, nn.Module):
                lost = [key for key, each in _state_of(child) if _counts(each) and not saved.has(each)]
                found += [f"{_said(here)}.{key}" for key in lost]
                continue
            if kind not in exempt:
                exempt[kind] = _exempt(kind)
            if depth + 1 < DEPTH and not exempt[kind] and not _is_compiled(child):
                line.append((here, depth + 1))
    return found


def _said(way: _Way | None) -> str:
    pieces: list[str] = []
    while way is not None:
        pieces.append(way[2])
        way = way[1]
    return "".join(reversed(pieces))


def _counts(tensor: torch.Tensor) -> bool:
    """Whether it has bytes that are somebody's state."""
    return tensor.numel() > 0 and not tensor.is_meta and tensor.grad_fn is None


def _state_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Its parameters and persistent buffers."""
    yield from module.named_parameters()
    for prefix, each in module.named_modules():
        for key, buffer in each.named_buffers(recurse=False):
            if key not in each._non_persistent_buffers_set:
                yield f"{prefix}.{key}".lstrip("."), buffer


def _exempt(kind: type) -> bool:
    """Whether what objects of a class hold is nobody's state, or not their owner's."""
    if issubclass(kind, torch.Tensor):
        return kind not in _PLAIN  # a subclass is read by itself, or refused as a whole
    if kind.__module__.startswith(
        ("spotguard.", "torch._dynamo", "torch._inductor", "torch.distributed.device_mesh")
    ):
        return True
    return issubclass(kind, (*_NOT_OWNED, torch.autograd.graph.Node))


def _is_compiled(child: object) -> bool:
    return type(child) is types.FunctionType and "_torchdynamo_orig_callable" in child.__dict__


def _children(owner: Any) -> Iterator[tuple[Any, str]]:
    """What it holds, each with how it is said."""
    kind = type(owner)
    if issubclass(kind, torch.Tensor):
        # Its attributes, where it has some: asking for `__dict__` would give it one. Its hooks are in no plain dict.
        for each in gc.get_referents(owner):
            if type(each) is dict:
                yield from _attributes(each)
    elif issubclass(kind, dict):
        for key, value in list(owner.items()):
            if type(key) not in _ATOMS:
                yield key, " (a key)"
                yield value, "[…]"
            elif key not in _SCRATCH:
                yield value, f"[{key!r}]"
    elif issubclass(kind, (list, tuple, set, frozenset, deque)):
        for number, value in enumerate(list(owner)):
            yield value, f"[{number}]"
    elif kind is types.FunctionType:
        for key, cell in zip(owner.__code__.co_freevars, owner.__closure__ or (), strict=False):
            for value in gc.get_referents(cell):
                yield value, f"({key})"
        for values in (owner.__defaults__, owner.__kwdefaults__, owner.__dict__):
            yield values, "(…)"
    else:
        attributes = _dict_of(owner)
        yield from _attributes(attributes)
        named = {id(attributes), *map(id, attributes.values())}
        for value in gc.get_referents(owner):
            if id(value) not in named:
                yield value, ".…"


def _dict_of(owner: object) -> dict[str, Any]:
    try:
        attributes = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return attributes if type(attributes) is dict else {}


def _attributes(table: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    for key, value in list(table.items()):
        if key not in _SCRATCH and not (key.startswith("_optimizer_") and key.endswith("_hooks")):
            yield value, f".{key}"
