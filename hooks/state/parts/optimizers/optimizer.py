"""A registered torch optimizer: its groups' numbers are copied at each boundary, and its moments are read in place.

This module never creates state. Torch's own ways to a complete `state_dict` run a step with zero gradients and leave
`step = 1` behind. An optimizer that has not stepped has empty state, and a save writes it empty.
"""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

import torch
from torch.optim import Optimizer

from .....providers.errors import CheckpointError, StateError
from ....checkpoint.tier import Tier
from ...inventory.frozen import freeze
from ...inventory.inner_tensors import check_outlines, is_outline, named, outlined, whole
from ...inventory.walk import tensors_in
from ...sharding.dtensor import (
    DeclaredReplicas,
    KnownTensor,
    RankOf,
    TargetMemory,
    is_dtensor,
    layout,
    local,
    state_tensor,
)
from ...sharding.saved_trees import SavedTrees
from ...state_tensor import StateTensor
from ..stateful import check_class
from ..values import Part, load_into
from ..wrappers import can_be_hooked, check_says_state
from . import gradients, groups, optimizer_tree
from .merge import merge
from .optimizer_tree import by_field, check_well_formed
from .running_products import running_products
from .target_memory import target_memory

log = logging.getLogger("spotguard")

#: id of a tensor -> the tensor, its name in a checkpoint, and the ranks that hold it too.
Named = dict[int, KnownTensor]


def optimizer_part(name: str, optimizer: Optimizer, named: Callable[[], Named], ranks: RankOf) -> Part:
    """Return the part for an optimizer.

    An optimizer with its own `state_dict` is saved through it, at the cost of a copy at each boundary.

    Args:
        name: the registered name.
        optimizer: the optimizer.
        named: returns the tensors of the registered modules as they are now.
        ranks: this process's rank, and the number of ranks.

    Raises:
        StateError: the optimizer cannot be saved.
    """
    cls = type(optimizer)
    zero = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    if zero is not None and isinstance(optimizer, zero.ZeroRedundancyOptimizer):
        raise StateError(
            f"{name} is a ZeroRedundancyOptimizer, whose state_dict() gathers state from all ranks; use "
            "fully_shard with a plain optimizer"
        )
    if cls.state_dict is not Optimizer.state_dict:
        check_says_state(
            name,
            optimizer,
            "register the optimizers that it is made of, or give it a state_dict() that works",
        )
        return gradients.OwnStatePart(name, optimizer)
    if not can_be_hooked(optimizer):
        raise StateError(
            f"{name} is a {cls.__name__} that has not called Optimizer.__init__, so spotguard can neither "
            "hook it nor read its state; register the optimizer that it wraps"
        )
    return OptimizerPart(name, optimizer, named, ranks)


class OptimizerPart(Part):
    """`param_groups` and `state`, keyed by the parameters' names in the model.

    So a checkpoint does not depend on the order in which the optimizer got its parameters.

    `state` may have more keys than the groups have parameters. Torch keeps moments of a parameter whose group was
    removed (a head that was frozen). There may also be entries under keys of the optimizer's own.
    """

    by_name = True

    def __init__(self, name: str, optimizer: Optimizer, named: Callable[[], Named], ranks: RankOf) -> None:
        super().__init__(name, objects=True)
        self._ranks = ranks
        self.optimizer = optimizer
        self._named = named
        self._frozen: list[dict[str, Any]] = []
        #: Parameters that the optimizer stepped once and that no group or module has any more. Torch keeps their
        #: state, and no step reads it.
        self._retired: dict[int, torch.Tensor] = {}
        self._param: dict[str, torch.Tensor] = {}
        self._products = running_products(optimizer)
        #: The groups' options at `register`.
        self._first = groups.options(optimizer.param_groups)
        #: Whether the checkpoint to restore is of this run. Then the restore also freezes and thaws as that run had done.
        self.own = True
        self.refresh()
        #: Names of the parameters that needed no gradient at `register`.
        self._first_frozen = {name for name, p in self._param.items() if not p.requires_grad}

    def refresh(self) -> None:
        """Take the parameters and state tensors as they are now. On the training thread, or with it parked."""
        self._groups = [list(g["params"]) for g in self.optimizer.param_groups]
        params = [p for group in self._groups for p in group]
        known, before = self._named(), [*self._param.values()]
        known = {id(p): KnownTensor(f"{i}", p) for i, p in enumerate(params)} | known
        self._key = {i: each.name for i, each in known.items()}
        #: Kept, so that no new tensor reuses the id of one that is gone.
        self._param = {each.name: each.tensor for each in known.values()}
        self._known = {each.name: each for each in known.values()}
        #: Whether the groups hold plain numbers only. Then one dict copy per group copies them.
        self._plain = all(
            not isinstance(v, (torch.Tensor, list, dict, Enum))
            for g in self.optimizer.param_groups
            for k, v in g.items()
            if k != "params"
        )
        self.tensors: list[torch.Tensor] = [*params, *self._state_tensors()]
        self._trained = gradients.TrainedParameters(params)
        #: Whether it keeps numbers beside its tensors, which a step changes and no boundary copies.
        self._numbers = any(optimizer_tree.has_numbers(values) for _, values in self._state())
        self._retire(before)

    def _retire(self, before: Iterable[torch.Tensor]) -> None:
        kept = {id(p): p for p in tensors_in(list(self.optimizer.state)) if id(p) not in self._key}
        retired = {id(p): p for p in (*before, *self._retired.values()) if id(p) in kept}
        if len(retired) > len(self._retired):
            # Continuing is right: `step()` reads only the state of its groups' parameters, and these are in no group.
            log.warning(
                "%s keeps state of %d parameters that are no longer in its groups or in a registered "
                "module: spotguard does not save that state",
                self.name,
                len(retired),
            )
        self._retired = retired

    def kept(self) -> Iterator[torch.Tensor]:
        """Yield the optimizer's own tensors that a save has, and those that it may leave out."""
        for group in self.optimizer.param_groups:
            yield from tensors_in(group)
        unknown = {id(p) for p in tensors_in(list(self.optimizer.state))} - self._key.keys()
        yield from self._retired.values()
        for param, values in self._state():
            if id(param) not in unknown or id(param) in self._retired:
                yield from tensors_in(values)

    def _state(self) -> Iterator[tuple[Any, Any]]:
        """Yield each key of the state with its values; an outline stands for a tensor with inner tensors."""
        for param, values in self.optimizer.state.items():
            yield param, outlined(values)

    def _state_tensors(self) -> list[torch.Tensor]:
        return [t for _, values in self._state() for t in tensors_in(values)]

    def moved(self) -> bool:
        """Return whether a parameter or a state tensor is another object than at the last `refresh`."""
        now = [p for g in self.optimizer.param_groups for p in g["params"]] + self._state_tensors()
        return len(now) != len(self.tensors) or any(
            a is not b for a, b in zip(now, self.tensors, strict=True)
        )

    def outdated(self) -> bool:
        """Return whether a parameter needs a gradient and did not at the last `refresh`, or the other way round.

        Look which ones have one, too.
        """
        self._trained.look()
        return self._trained.turned

    def counts(self) -> int:
        """Return a number that changes when parameters are added or state is created.

        It is cheap enough for every boundary.
        """
        count = len(self.optimizer.state)
        for group in self.optimizer.param_groups:
            count += len(group["params"])
        return count

    def at_boundary(self) -> None:
        if self._products is not None:
            self._products.at_boundary()
        self._trained.at_boundary()
        if self._plain:
            self._frozen = [g.copy() for g in self.optimizer.param_groups]
        else:
            self._frozen = [
                {k: v if k == "params" else freeze(v, self.forms) for k, v in g.items()}
                for g in self.optimizer.param_groups
            ]

    def groups(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Yield the values of each group as of the last boundary, and as they are now."""
        for before, now in zip(self._frozen, self.optimizer.param_groups, strict=False):
            yield (
                {k: v for k, v in before.items() if k != "params"},
                {k: v for k, v in now.items() if k != "params"},
            )

    def copied(self) -> Mapping[str, Any] | None:
        if self._numbers:
            return None
        copies = {each: copy.copy(getattr(self, each)) for each in ("_trained", "_products")}
        return {"_frozen": self._frozen, "_groups": self._groups, **copies}

    def state_tensors(self) -> list[StateTensor]:
        """Return the state tensors. The parameters themselves belong to their module's part, or to none."""
        state_tensors: dict[int, StateTensor] = {}
        others = 0
        for param, values in self._state():
            owner: KnownTensor | None = None
            if not isinstance(param, torch.Tensor):
                prefix, others = f"{self.name}/other/{others}", others + 1
            elif (key := self._key.get(id(param))) is not None:
                prefix = f"{self.name}/state/{key}"
                owner = self._known[key]
            else:
                continue
            for field, value in by_field(values):
                paths = named(value) if is_outline(value) else enumerate(tensors_in(value))
                for path, tensor in paths:
                    name = f"{prefix}/{field}" if value is tensor else f"{prefix}/{field}.{path}"
                    if id(tensor) not in state_tensors:
                        state_tensors[id(tensor)] = self._leaf(name, tensor, owner)
        return list(state_tensors.values())

    def _leaf(self, name: str, tensor: torch.Tensor, owner: KnownTensor | None) -> StateTensor:
        """Return the state tensor for one tensor that belongs to the parameter `owner`.

        State of a replicated parameter is replicated. Beside a sharded parameter optimizers keep the step count,
        which all ranks share. Any other plain tensor there is made from one shard alone.
        """
        declared = None if owner is None else owner.declared
        if owner is not None and is_dtensor(owner.tensor) and not tensor.dim():
            ranks = layout(owner.tensor).mesh
            declared = DeclaredReplicas(ranks, ranks) if len(ranks) > 1 else None
        span = () if owner is None else owner.span
        return state_tensor(name, tensor, self._ranks, declared, span=span, still=True, tier=Tier.MOMENTS)

    def tree(self) -> Any:
        named_groups = [
            {**group, "params": [self._key[id(p)] for p in params]}
            for group, params in zip(self._frozen, self._groups, strict=True)
        ]
        state: dict[str, Any] = {}
        other: list[tuple[Any, Any]] = []
        shards: dict[str, Any] = {}
        placed: dict[str, Any] = {}
        state_tensors = self.state_tensors()
        names = {id(state_tensor.tensor): state_tensor.name for state_tensor in state_tensors}
        plain = [names[id(t)] for t in self._look_alikes()]
        for param, values in self._state():
            values = dict(values) if isinstance(values, dict) else values
            if not isinstance(param, torch.Tensor):
                other.append((param, values))
            elif (key := self._key.get(id(param))) is not None:
                state[key] = values
                if is_dtensor(param):
                    kept = [*tensors_in(values)]
                    if made := optimizer_tree.plain(kept):
                        plain += [names[id(t)] for t in made]
                        if (made_of := optimizer_tree.shard(param)) is not None:
                            shards[key] = made_of
                    layouts = ((names[id(local(t))], optimizer_tree.placements(param, t)) for t in kept)
                    placed |= {name: placements for name, placements in layouts if placements is not None}
        on_host = [
            state_tensor.name for state_tensor in state_tensors if state_tensor.tensor.device.type == "cpu"
        ]
        tree = {
            "class": type(self.optimizer).__qualname__,
            "param_groups": named_groups,
            "registered": groups.changed_since(self._first, named_groups),
            "state": state,
            "on_host": on_host,
        }
        names_of = (self._key[id(p)] for group in self._groups for p in group)
        flags = zip(names_of, self._trained.needs, strict=True)
        turned = {name: needs for name, needs in flags if needs == (name in self._first_frozen)}
        more: dict[str, Any] = {
            "turned": turned,
            "gradients": self._trained.graded.rstrip(gradients.NONE),
            "other": other,
            "shards": shards,
            "placed": placed,
            "plain": plain,
        }
        if self._products is not None:
            more["products_since"] = self._products.since
        return {**tree, **{field: value for field, value in more.items() if value}}

    def _look_alikes(self) -> list[torch.Tensor]:
        if type(self.optimizer).__module__.startswith("torch.optim."):
            return []  # no optimizer of torch's keeps a factor of its parameter's shape
        return optimizer_tree.look_alikes(
            (param, field, tensor)
            for param, values in self._state()
            if id(param) in self._key
            for field, value in by_field(values)
            for tensor in tensors_in(value)
        )

    @staticmethod
    def without_state(tree: dict[str, Any]) -> dict[str, Any]:
        """Return the tree of an optimizer that has not stepped, with the learning rates of this one."""
        kept = ("class", "param_groups", "registered", "turned", "gradients")
        return {**{key: tree[key] for key in kept if key in tree}, "state": {}, "on_host": []}

    def merge(self, trees: SavedTrees) -> Any:
        """Return one tree, merged by the parameters' names."""
        stepped = {self._key[id(p)] for group in self._groups for p in group}
        return merge(self.name, trees, stepped, self._param, len(self._groups), self._check_form)

    def memory(self, tree: Any, name_of: Callable[[torch.Tensor], str]) -> Iterator[TargetMemory]:
        first = next((p for group in self._groups for p in group), None)
        return target_memory(self.name, tree, self._param, first, name_of)

    def _check_kind(self, tree: Any) -> None:
        if not isinstance(tree, dict) or "class" not in tree or "param_groups" not in tree:
            raise StateError(f"{self.name}: the checkpoint holds no optimizer under this name [SG602]")
        if type(cls := tree["class"]) is not str:
            raise CheckpointError(
                f"{self.name}: the saved optimizer's {'class'!r} is not in the form that spotguard writes"
            )
        check_class(self.name, type(self.optimizer).__qualname__, cls)

    def _check_form(self, tree: Any) -> None:
        self._check_kind(tree)
        check_well_formed(self.name, tree)

    def targets(self, tree: Any) -> None:
        self._check_form(tree)
        check_outlines(self.name, tree["state"])
        check_outlines(self.name, tree.get("other", []))
        self._fit(tree)
        if unknown := sorted(set(tree["state"]) - set(self._param)):
            raise StateError(
                f"{self.name}: the checkpoint holds state of {unknown[0]!r}, which no registered module has; "
                "register what was registered when it was saved"
            )

    def _fit(self, tree: Any) -> list[int]:
        theirs = [g["params"] for g in tree["param_groups"]]
        ours = [[self._key[id(p)] for p in g["params"]] for g in self.optimizer.param_groups]
        return groups.fit(self.name, ours, theirs, self._param.keys(), self.may_lack)

    def put_back(self, tree: Any) -> None:
        """Put the tree straight into `state` and `param_groups`.

        `Optimizer.load_state_dict` would cast moments to the parameters' dtype, and a float32 moment of a bfloat16
        weight would be rounded.
        """
        here = self._fit(tree)
        self.said = groups.news(self.name, here, self._first, tree)
        groups.put_back(self.name, self.optimizer, here, tree["param_groups"], self._param)
        if self.own:
            gradients.turn(self.name, self._param, tree.get("turned", {}))
        graded = {name: given for name, given in optimizer_tree.graded(tree).items() if name in self._param}
        gradients.put_back([self._param[name] for name in graded], "".join(graded.values()))
        self._fill(tree)
        if type(self.optimizer).load_state_dict is not Optimizer.load_state_dict:
            # Its own `load_state_dict` does more than load (Horovod's drops pending gradients). `_fill` below
            # restores values that it rounds.
            restored = self.optimizer.param_groups
            load_into(self.name, self.optimizer, self.optimizer.state_dict())
            self.optimizer.param_groups = restored
            self._fill(tree)
        if self._products is not None:
            self._products.repeat(tree.get("products_since", 1))
        self.refresh()

    def _fill(self, tree: Any) -> None:
        self.optimizer.state.clear()
        for key, values in tree["state"].items():
            self.optimizer.state[self._param[key]] = whole(values)
        for key, values in tree.get("other", ()):
            self.optimizer.state[key] = whole(values)
