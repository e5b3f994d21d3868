"""From what a script registers to parts: who can be saved, and how; who cannot, by name and with a way out."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...providers.errors import StateError
from .loaders import LoaderPart, is_stateful_loader
from .modules import Known, ModulePart, module_part
from .optimizers import Named, optimizer_part
from .parts import DictPart, Part, StatefulPart, TensorPart
from .rng import RngPart
from .shards import Ranks

#: What is no object that a restore could put something back into.
_PLAIN = (bool, int, float, complex, str, bytes, list, tuple, set, frozenset)

#: The part that is always there.
RNG = "rng"


@dataclass(frozen=True, slots=True)
class Registered:
    """The parts of what was registered, the random number generators last."""

    parts: tuple[Part, ...]
    #: Why no save can start before a boundary; "" where it can.
    boundary_only: str
    #: ids of the tensors that a save holds, asked anew for parameters that join an optimizer later.
    held: Callable[[], set[int]]
    #: torch's own, whose steps can be hooked.
    optimizers: tuple[Optimizer, ...]


def build(values: Mapping[str, Any], ranks: Ranks) -> Registered:
    """The parts for these values, which are left as they are.

    Args:
        values: by registered name.
        ranks: which of the job's processes this is.

    Raises:
        StateError: a value cannot be saved.
    """
    for name, value in values.items():
        if isinstance(value, type):
            raise StateError(f"{name} is the class {value.__name__}; register an object of it")
    if RNG in values:
        raise StateError(f"{RNG!r} is the name of the random number generators; register under another name")
    modules = {n: module_part(n, v, ranks) for n, v in values.items() if isinstance(v, nn.Module)}
    tensors = {id(v): Known(n, v) for n, v in values.items() if isinstance(v, torch.Tensor)}

    def named() -> Named:
        """Asked anew by who refreshes: ids of tensors that are gone may be anybody's."""
        found: Named = {}
        for part in modules.values():
            if isinstance(part, ModulePart):
                found = part.named() | found
        return found | tensors

    def held() -> set[int]:
        return {id(p) for v in values.values() if isinstance(v, nn.Module) for p in v.parameters()} | set(
            named()
        )

    optimizers = {n: v for n, v in values.items() if isinstance(v, Optimizer)}
    stepped: set[int] = set()
    for name, optimizer in optimizers.items():
        check_held(name, optimizer, held())
        stepped |= {id(p) for g in optimizer.param_groups for p in g["params"]}
    for part in modules.values():
        if isinstance(part, ModulePart):
            part.stepped = frozenset(stepped)
    parts: list[Part] = []
    boundary_only = "" if optimizers else "no torch optimizer is registered"
    for name, value in values.items():
        if name in modules:
            parts.append(modules[name])
        elif name in optimizers:
            parts.append(optimizer_part(name, value, named, ranks))
        else:
            parts.append(_other(name, value, ranks))
            if hasattr(value, "param_groups") and hasattr(value, "step"):
                boundary_only = f"torch's hooks do not reach {name} ({type(value).__name__})"
    return Registered((*parts, RngPart(RNG)), boundary_only, held, tuple(optimizers.values()))


def _other(name: str, value: Any, ranks: Ranks) -> Part:
    if isinstance(value, torch.Tensor):
        return TensorPart(name, value, ranks)
    if isinstance(value, dict):
        return DictPart(name, value)
    if is_stateful_loader(value):
        return LoaderPart(name, value)
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        return StatefulPart(name, value)
    advice = "give it state_dict() and load_state_dict(), or register the plain values it needs in a dict"
    if value is None:
        advice = "leave it out"
    elif isinstance(value, _PLAIN):
        advice = f"put it into a dict that your loop changes, as in notes={{'{name}': …}}, and register that"
    elif isinstance(value, (torch.Generator, random.Random)) or type(value).__module__.startswith(
        "numpy.random"
    ):
        advice = "wrap it in an object whose state_dict() gives its state and whose load_state_dict() sets it"
    elif isinstance(value, torch.utils.data.DataLoader):
        advice = (
            "a DataLoader does not know its position: use torchdata's StatefulDataLoader, "
            "or register a sampler with state_dict()"
        )
    raise StateError(f"{name} is of type {type(value).__name__}, which cannot be saved: {advice}")


def check_held(name: str, optimizer: Optimizer, held: Set[int]) -> None:
    """Raise `StateError` where an optimizer steps what no save would hold."""
    orphans = sum(id(p) not in held for g in optimizer.param_groups for p in g["params"])
    if orphans:
        raise StateError(
            f"{name} steps {orphans} parameters that no registered module holds, so they would not be saved; "
            "register the model too: register(model=model, optimizer=optimizer)"
        )
