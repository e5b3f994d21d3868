"""From registered values to parts: how each value is saved, or an error that names it and the way out."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ....providers.errors import StateError
from ...checkpoint.format.values.state_check import RNG
from ..inventory.inner_tensors import outlined
from ..inventory.objects import attributes as attributes_of
from ..inventory.reachable import SavedTensors, unsaved
from ..inventory.walk import tensors_in
from ..sharding.dtensor import KnownTensor, RankOf, is_dtensor
from .attribute_watch import AttributeWatch
from .loaders import ResumableLoader
from .loaders.generators import OwnGenerators
from .loaders.part import LoaderPart, refuse_bare
from .module import ModulePart, module_part
from .optimizers.optimizer import Named, OptimizerPart, optimizer_part
from .rng import RngPart, other_generators
from .stateful import ClassedPart, ScalerPart, is_like_scheduler, reads_a_device
from .values import DictPart, Part, StatefulPart, TensorPart, has_state
from .wrappers import around, can_be_hooked, check_says_state, is_like_optimizer, unwrapped

#: Types of plain values: objects that a restore cannot put a state back into.
_PLAIN = (bool, int, float, complex, str, bytes, list, tuple, set, frozenset)


@dataclass(frozen=True, slots=True)
class Registered:
    """The parts of the registered values, with the random number generators last."""

    parts: tuple[Part, ...]
    rng: RngPart
    #: Why no save can start before a boundary; "" if one can.
    boundary_only: str
    #: Returns the ids of the tensors that a save holds. Call it again when parameters join an optimizer.
    held: Callable[[], set[int]]
    #: Torch's optimizers whose steps can be hooked, and wrappers of them that can be hooked too.
    optimizers: tuple[Optimizer, ...]
    #: Returns a message about tensors that an optimizer holds and no save has; "" if there are none. A call takes
    #: some ms, which is too slow for every boundary.
    lost: Callable[[], str]
    #: Values outside the saved state that may be state.
    attributes: AttributeWatch


def build(values: Mapping[str, Any], ranks: RankOf) -> Registered:
    """Return the parts for these values, which stay unchanged.

    Args:
        values: by registered name.
        ranks: this process's rank, and the number of ranks.

    Raises:
        StateError: a value cannot be saved.
    """
    for name, value in values.items():
        if isinstance(value, type):
            raise StateError(f"{name} is the class {value.__name__}; register an instance of it")
    if RNG in values:
        raise StateError(f"{RNG!r} is the name of the random number generators; register under another name")
    refuse_engines(values)
    modules = {n: module_part(n, v, ranks) for n, v in values.items() if isinstance(v, nn.Module)}
    tensors = {id(v): KnownTensor(n, v) for n, v in values.items() if isinstance(v, torch.Tensor)}
    beside = [v for v in values.values() if isinstance(v, (nn.Module, torch.Tensor, dict))]
    values, wrappers = unwrapped(values, lambda inside: SavedTensors(_tensors_of([*beside, *inside])))

    def named() -> Named:
        """Return the modules' tensors now.

        Callers ask again at each refresh: another tensor may reuse the id of one that is gone.
        """
        tensors_by_id: Named = {}
        for part in modules.values():
            tensors_by_id = {**part.named(), **tensors_by_id}
        return tensors_by_id | tensors

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
    hooked: list[Optimizer] = [v for v in wrappers.values() if isinstance(v, Optimizer) and can_be_hooked(v)]
    for name, value in values.items():
        if name in modules:
            parts.append(modules[name])
        elif name in optimizers:
            parts.append(optimizer_part(name, value, named, ranks))
        else:
            refuse_bare(name, value, values.values())
            parts.append(part := _other(name, value, ranks))
            if (
                isinstance(part, TensorPart)
                and part.in_place()
                and not part.live.untyped_storage().resizable()
            ):
                # torch counts no change through numpy. A replay buffer changes in the middle of a turn, beside a save.
                boundary_only = boundary_only or (
                    f"{name} is memory that torch does not own (a numpy array's, a file's), which may change at any moment"
                )
        if is_like_optimizer(value):
            if isinstance(value, Optimizer) and can_be_hooked(value):
                hooked.append(value)
            else:
                boundary_only = f"torch's hooks do not reach {name} ({type(value).__name__})"
    read = [part for part in parts if isinstance(part, OptimizerPart)]
    dicts = [part for part in parts if isinstance(part, DictPart)]
    for notes in dicts:
        notes.dicts, notes.others = dicts, lambda: _tensors_of(values.values(), used=True)
        notes.named_tensors = lambda: {
            each.name: each.tensor for each in named().values() if not is_dtensor(each.tensor)
        }

    def lost() -> str:
        return _lost(read, beside, [*values.values()], wrappers)

    if message := lost():
        raise StateError(message)
    if (
        not tensors
    ):  # otherwise the optimizer may step these, as an adapter for such a framework registers them
        for each in read:
            check_groups(each)

    def saved() -> SavedTensors:
        kept = [*beside, *(part.optimizer for part in read)]
        return SavedTensors([*_tensors_of(kept), *_said_by(values.values())])

    plain = {n: values[n] for n, part in modules.items() if isinstance(part, ModulePart)}
    others = [v for v in values.values() if not isinstance(v, (nn.Module, Optimizer))]
    outer = [(n, each) for n, wrapper in wrappers.items() for each in around(wrapper)]
    outer += [(part.name, part.optimizer) for part in read]
    attributes = AttributeWatch(outer, plain, saved, others)
    rng = RngPart(RNG, other_generators(), OwnGenerators([values[part.name] for part in dicts]))
    return Registered((*parts, rng), rng, boundary_only, held, tuple(hooked), lost, attributes)


def _tensors_of(values: Iterable[Any], *, used: bool = False) -> Iterator[torch.Tensor]:
    """Yield the tensors that a save has of modules, optimizers, dicts and bare tensors. Other objects are not asked: they may draw from
    a generator that has just been restored.

    Args:
        values: the values.
        used: with the tensors in modules' plain attributes, and without dicts.
    """
    for value in values:
        if isinstance(value, nn.Module):
            yield from (*value.parameters(), *value.buffers())
            kept = (each for module in value.modules() if used for each in vars(module).values())
            yield from (each for each in kept if isinstance(each, torch.Tensor))
        elif isinstance(value, Optimizer):
            yield from tensors_in([value.param_groups, outlined([*value.state.values()])])
        elif isinstance(value, torch.Tensor) or (isinstance(value, dict) and not used):
            with suppress(RecursionError):  # a circle: the encoder refuses it by name
                yield from tensors_in(value)


def _lost(
    read: Sequence[OptimizerPart], beside: Sequence[Any], values: Sequence[Any], wrappers: Mapping[str, Any]
) -> str:
    """Return a message about tensors that an optimizer holds and no save has; "" if all are saved."""
    known = {*map(id, values)}
    kept = [*_tensors_of(beside), *(tensor for part in read for tensor in part.kept())]
    saved = SavedTensors(kept)
    for part in read:
        ways = unsaved(part.name, part.optimizer, saved, known)
        if ways:
            # A user's object may save these tensors. Ask it only now: its state_dict() may be slow.
            theirs = [*_said_by(values)]
            ways = (
                unsaved(part.name, part.optimizer, SavedTensors([*kept, *theirs]), known) if theirs else ways
            )
        if ways:
            more = f" and {len(ways) - 2} more" if len(ways) > 2 else ""
            kind = type(part.optimizer).__name__
            return (
                f"{part.name} ({kind}) holds {', '.join(ways[:2])}{more}, which no save would include; "
                f"register that too, under a name of its own, or give {kind} a state_dict() and a "
                "load_state_dict() that include it"
            )
    for name, wrapper in wrappers.items():
        known |= {*map(id, around(wrapper))}
        for each in around(wrapper):
            if ways := unsaved(name, each, saved, known):
                kind = type(each).__name__
                return (
                    f"{name} ({kind}) holds {ways[0]}, which no save would include: its optimizer is saved for it, as its state_dict() "
                    f"had nothing more at register; give {kind} a state_dict() and a load_state_dict() that include it"
                )
    return ""


def _said_by(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors in the `state_dict()` of values that have no part of their own."""
    for value in values:
        own = isinstance(value, (nn.Module, torch.Tensor, dict, Optimizer, ResumableLoader))
        if not own and callable(getattr(value, "state_dict", None)):
            yield from tensors_in(value.state_dict())


def check_groups(part: OptimizerPart) -> None:
    """Raise `StateError` if nothing tells which parameters an optimizer steps.

    DeepSpeed's ZeRO-3, for example, gives an optimizer its parameters anew for each step.
    """
    if not any(group["params"] for group in part.optimizer.param_groups) and not part.optimizer.state:
        raise StateError(
            f"{part.name} has no parameters in its groups, so it is not known what it trains; "
            "register it when it has them. If it has them only during a step, keep its framework's own "
            "checkpoints, and use spotguard.on_notice"
        )


def refuse_engines(values: Mapping[str, Any]) -> None:
    """Raise `StateError` for DeepSpeed's engines, for parameters that ZeRO-3 keeps cut, and for torchao's offloading
    optimizer: they do not show the tensors that they train.
    """
    engines = sys.modules.get("deepspeed.runtime.engine")
    offload = sys.modules.get("torchao.optim.cpu_offload")
    for name, value in values.items():
        if offload is not None and isinstance(value, offload.CPUOffloadOptimizer):
            raise StateError(
                f"{name} is a CPUOffloadOptimizer, which steps copies of the weights on the host, and its load_state_dict() "
                "restores the moments but not these copies: the first step after a resume would bring the weights of a fresh "
                "start back; use torchao.optim.AdamW8bit, or an optimizer of torch [SG411]"
            )
        if not isinstance(value, nn.Module):
            continue
        if engines is not None and isinstance(value, engines.DeepSpeedEngine):
            what = f"{name} is a {type(value).__name__}"
        elif cut := next((key for key, p in value.named_parameters() if hasattr(p, "ds_id")), ""):
            what = f"{name}.{cut} is sharded by DeepSpeed's ZeRO-3"
        else:
            continue
        raise StateError(
            f"{what}, which keeps moments, float32 masters and shards where no state_dict() of torch "
            "shows them: a checkpoint would lack them; register the engine by "
            "spotguard.integrations.deepspeed.register(engine) [SG411]"
        )


def _other(name: str, value: Any, ranks: RankOf) -> Part:
    if isinstance(value, torch.Tensor):
        return TensorPart(name, value, ranks)
    if isinstance(value, dict):
        return DictPart(name, value)
    if isinstance(value, ResumableLoader):
        return LoaderPart(name, value)
    if has_state(value):
        check_says_state(
            name, value, "register what it is made of, or give it a state_dict() without arguments"
        )
        if reads_a_device(value):
            return ScalerPart(name, value)
        classed = is_like_scheduler(value) or is_like_optimizer(value)
        return ClassedPart(name, value) if classed else StatefulPart(name, value)
    advice = "give it state_dict() and load_state_dict(), or register the plain values it needs in a dict"
    if value is None:
        advice = "leave it out"
    elif isinstance(value, _PLAIN):
        advice = f"put it into a dict that your loop changes, as in notes={{'{name}': …}}, and register that"
    elif isinstance(value, (torch.Generator, random.Random)) or type(value).__module__.startswith(
        "numpy.random"
    ):
        advice = (
            "wrap it in an object whose state_dict() returns its state and whose load_state_dict() sets it"
        )
    elif held := next((key for key, each in attributes_of(value).items() if isinstance(each, _LOADERS)), ""):
        advice = f"its loader is in .{held}: register that, as a spotguard.ResumableLoader; or {advice}"
    raise StateError(f"{name} is of type {type(value).__name__}, which cannot be saved: {advice} [SG401]")


_LOADERS = (torch.utils.data.DataLoader, ResumableLoader)


def check_held(name: str, optimizer: Optimizer, held: Set[int]) -> None:
    """Raise `StateError` if an optimizer steps parameters that no save would hold."""
    orphans = sum(id(p) not in held for g in optimizer.param_groups for p in g["params"])
    if orphans:
        raise StateError(
            f"{name} steps {orphans} parameters that no registered module holds, so they would not be saved; "
            "register the model too: register(model=model, optimizer=optimizer) [SG409]"
        )
