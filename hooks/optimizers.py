"""A registered torch optimizer: its groups' numbers are copied at each boundary, its moments are read in place.

Nothing here materializes state. Torch's own routes to a complete `state_dict` run a step with zero gradients
and leave `step = 1` behind; an optimizer that has not stepped yet has empty state, and that is what is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from ..providers.errors import StateError
from .parts import Leaf, Part, StatefulPart, copy_into, freeze, tensors_in


def optimizer_part(name: str, optimizer: Optimizer, names: Mapping[int, str]) -> Part:
    """The part for an optimizer; one with a `state_dict` of its own is believed, at the price of copying it.

    Args:
        names: id of each parameter of the registered modules -> the name it is saved under.
    """
    cls = type(optimizer)
    if cls.state_dict is not Optimizer.state_dict or cls.load_state_dict is not Optimizer.load_state_dict:
        return StatefulPart(name, optimizer)
    return OptimizerPart(name, optimizer, names)


class OptimizerPart:
    """`param_groups` and `state`, keyed by the parameters' names in the model, so that a checkpoint does not
    depend on the order in which parameters were handed to the optimizer."""

    def __init__(self, name: str, optimizer: Optimizer, names: Mapping[int, str]) -> None:
        self.name = name
        self.optimizer = optimizer
        self._names = names
        self._frozen: list[dict[str, Any]] = []
        self.refresh()

    def refresh(self) -> None:
        """Take the parameters and state tensors as they are now. On the training thread, or with it parked."""
        self._groups = [list(g["params"]) for g in self.optimizer.param_groups]
        params = [p for group in self._groups for p in group]
        self._key = {id(p): self._names.get(id(p), f"{i}") for i, p in enumerate(params)}
        self._param = {self._key[id(p)]: p for p in params}
        #: Groups whose numbers are only numbers are copied by one dict copy.
        self._plain = all(
            not isinstance(v, (torch.Tensor, list, dict))
            for g in self.optimizer.param_groups
            for k, v in g.items()
            if k != "params"
        )
        self.tensors: list[torch.Tensor] = [*params, *self._state_tensors()]

    def _state_tensors(self) -> list[torch.Tensor]:
        return [t for values in self.optimizer.state.values() for t in tensors_in(values)]

    def moved(self) -> bool:
        """Whether a parameter or a state tensor is another object than when `refresh` looked."""
        now = [p for g in self.optimizer.param_groups for p in g["params"]] + self._state_tensors()
        return len(now) != len(self.tensors) or any(
            a is not b for a, b in zip(now, self.tensors, strict=True)
        )

    def counts(self) -> int:
        """Changes when parameters are added or state is created: cheap enough for every boundary."""
        count = len(self.optimizer.state)
        for group in self.optimizer.param_groups:
            count += len(group["params"])
        return count

    def at_boundary(self) -> None:
        if self._plain:
            self._frozen = [g.copy() for g in self.optimizer.param_groups]
        else:
            self._frozen = [
                {k: v if k == "params" else freeze(v) for k, v in g.items()}
                for g in self.optimizer.param_groups
            ]

    def leaves(self) -> list[Leaf]:
        """The state tensors. The parameters themselves are their module's leaves (or nobody's)."""
        found: dict[int, Leaf] = {}
        for param, values in self.optimizer.state.items():
            prefix = f"{self.name}/state/{self._key.get(id(param), 'other')}"
            for key, value in values.items() if isinstance(values, dict) else ():
                for i, tensor in enumerate(tensors_in(value)):
                    name = f"{prefix}/{key}" if isinstance(value, torch.Tensor) else f"{prefix}/{key}.{i}"
                    found.setdefault(id(tensor), Leaf(name, tensor, still=True))
        return list(found.values())

    def tree(self) -> Any:
        groups = [
            {**group, "params": [self._key[id(p)] for p in params]}
            for group, params in zip(self._frozen, self._groups, strict=True)
        ]
        state = {self._key[id(p)]: dict(values) for p, values in self.optimizer.state.items()}
        on_host = [leaf.name for leaf in self.leaves() if leaf.tensor.device.type == "cpu"]
        return {
            "class": type(self.optimizer).__qualname__,
            "param_groups": groups,
            "state": state,
            "on_host": on_host,
        }

    def targets(self, tree: Any) -> None:
        try:
            saved, cls = tree["param_groups"], tree["class"]
            theirs = [g["params"] for g in saved]
        except (KeyError, TypeError) as error:
            raise StateError(f"{self.name}: the checkpoint holds no optimizer under this name") from error
        if cls != type(self.optimizer).__qualname__:
            raise StateError(
                f"{self.name} is {type(self.optimizer).__qualname__} here and {cls} in the checkpoint; "
                "register the same optimizer, or leave it out of register to start it fresh"
            )
        ours = [[self._key[id(p)] for p in g["params"]] for g in self.optimizer.param_groups]
        if ours != theirs:
            raise StateError(
                f"{self.name} has parameter groups of {[len(g) for g in ours]} here and "
                f"{[len(g) for g in theirs]} in the checkpoint, or in another order; build it over the same model"
            )

    def put_back(self, tree: Any) -> None:
        """Straight into `state` and `param_groups`: `Optimizer.load_state_dict` would cast moments to the
        parameters' dtype, and a float32 moment of a bfloat16 weight would come back rounded."""
        for group, saved in zip(self.optimizer.param_groups, tree["param_groups"], strict=True):
            for key, value in saved.items():
                held = group.get(key)
                if (
                    isinstance(value, torch.Tensor)
                    and isinstance(held, torch.Tensor)
                    and held.shape == value.shape
                ):
                    copy_into(held, value)  # the user, or a compiled step, holds this very learning rate
                elif key != "params":
                    group[key] = value
        self.optimizer.state.clear()
        for key, values in tree["state"].items():
            self.optimizer.state[self._param[key]] = values
        self.refresh()

    def empty(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, on_host: bool) -> torch.Tensor:
        """Memory for a state tensor that is to be read: beside its parameter, in its parameter's layout."""
        key = name.removeprefix(f"{self.name}/state/").rpartition("/")[0]
        param = self._param.get(key)
        if param is None or on_host:
            return torch.empty(shape, dtype=dtype)
        if param.shape == shape:
            return torch.empty_like(param, dtype=dtype, requires_grad=False)
        return torch.empty(shape, dtype=dtype, device=param.device)


def hook(optimizer: Optimizer, before_change: Callable[[], None]) -> None:
    """Have `before_change` called before this optimizer changes anything.

    A closure (LBFGS, Lightning) runs forward and backward inside `step()`: there the state changes only after
    the closure has run once, so the gate is passed at that moment and not before.
    """

    def pre_hook(_: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
        if closure is None:
            before_change()
            return None

        def gated() -> Any:
            loss = closure()
            before_change()  # nothing the second time: the state is dirty until the boundary
            return loss

        if len(args) > 1:
            return (args[0], gated, *args[2:]), kwargs
        return args, {**kwargs, "closure": gated}

    optimizer.register_step_pre_hook(pre_hook)
