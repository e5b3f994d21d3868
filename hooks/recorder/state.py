"""What was registered, as checksums by name: read from the live objects, so that the comparison does not rest on the copies that
spotguard itself makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..state.parts.loaders import is_stateful_loader
from . import checksums

#: Bytes of a tensor that is looked at once more, within a turn.
_SMALL = 2**20


def named_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers that a state dict holds; a tied one under its first name."""
    left_out = {
        f"{prefix}.{name}".lstrip(".")
        for prefix, part in module.named_modules()
        for name in part._non_persistent_buffers_set
    }
    yield from module.named_parameters()
    yield from ((name, buffer) for name, buffer in module.named_buffers() if name not in left_out)


class RegisteredObjects:
    """The objects that the script has given to `register`, by the names that it gave them."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)
        #: id of an object -> its registered name.
        self.names = {id(value): name for name, value in values.items()}

    def is_replaced(self, name: str, value: object) -> bool:
        """Whether it is another object than the one of this name, of the very same type."""
        registered = self._values.get(name)
        return registered is not None and value is not registered and type(value) is type(registered)

    def kinds(self) -> dict[str, str]:
        """The type of each, by its name."""
        return {name: type(value).__name__ for name, value in self._values.items()}

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        yield from ((name, value) for name, value in self._values.items() if isinstance(value, nn.Module))

    def optimizers(self) -> Iterator[Optimizer]:
        yield from (value for value in self._values.values() if isinstance(value, Optimizer))

    def parameter_names(self) -> dict[int, str]:
        """id of a registered tensor -> its name."""
        found = {id(value): name for name, value in self._values.items() if isinstance(value, torch.Tensor)}
        for name, module in self.modules():
            for key, tensor in named_tensors(module):
                found.setdefault(id(tensor), f"{name}.{key}")
        return found

    def frozen(self) -> list[str]:
        """Names of the parameters whose `requires_grad` is off."""
        return [
            f"{name}.{key}"
            for name, module in self.modules()
            for key, parameter in module.named_parameters()
            if not parameter.requires_grad
        ]

    def items(self, *, small: bool = False) -> dict[str, str]:
        """
        Args:
            small: leave out what lies in large tensors, and in optimizers' moments.
        """
        found: dict[str, str] = {}
        names = self.parameter_names()
        for name, value in self._values.items():
            if isinstance(value, nn.Module):
                pairs = named_tensors(value)
                found |= {f"{name}.{k}": checksums.of_tensor(t) for k, t in pairs if _taken(t, small)}
            elif isinstance(value, Optimizer):
                found |= of_optimizer(name, value, names, moments=not small)
            elif isinstance(value, torch.Tensor):
                if _taken(value, small):
                    found[name] = checksums.of_tensor(value)
            elif isinstance(value, dict):
                flatten(name, value, found)
            elif is_stateful_loader(value):
                # Asking one that has not begun would make it begin.
                if not small and value._iterator is not None:
                    flatten(name, value.state_dict(), found)
            else:
                flatten(name, value.state_dict(), found)
        return found


def of_optimizer(
    name: str, optimizer: Optimizer, names: Mapping[int, str], *, moments: bool = True
) -> dict[str, str]:
    """The numbers of its groups, and what it keeps for each parameter."""
    found: dict[str, str] = {}
    for number, group in enumerate(optimizer.param_groups):
        plain = {key: value for key, value in group.items() if key != "params"}
        flatten(f"{name}.group {number}", plain, found)
    if moments:
        for number, (parameter, state) in enumerate(optimizer.state.items()):
            flatten(f"{name}.{names.get(id(parameter), f'parameter {number}')}", state, found)
    return found


def flatten(path: str, value: Any, found: dict[str, str], depth: int = 6) -> None:
    """Give each tensor and plain value of a state dict a name of its own."""
    if isinstance(value, torch.Tensor):
        found[path] = checksums.of_tensor(value)
    elif checksums.is_array(value):
        found[path] = checksums.of_array(value)
    elif isinstance(value, Mapping) and depth:
        for key, item in value.items():
            flatten(f"{path}.{key}", item, found, depth - 1)
    elif (
        isinstance(value, (list, tuple)) and depth and not all(isinstance(v, checksums.ATOMS) for v in value)
    ):
        for number, item in enumerate(value):
            flatten(f"{path}.{number}", item, found, depth - 1)
    elif isinstance(value, (*checksums.ATOMS, list, tuple, set, frozenset)):
        text = repr(sorted(value, key=repr)) if isinstance(value, (set, frozenset)) else repr(value)
        found[path] = checksums.of_text(text)
    elif (state := checksums.of_generator(value)) is not None:
        found[path] = state
    else:
        found[path] = type(value).__name__


def _taken(tensor: torch.Tensor, small: bool) -> bool:
    return not small or tensor.nbytes <= _SMALL
