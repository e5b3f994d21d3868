"""The registered objects, as checksums by name.

They are read from the live objects, so that the comparison does not rest on the copies that spotguard itself makes.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..state.inventory.objects import attributes, is_array, saved_object
from ..state.parts.loaders import ResumableLoader
from . import checksums

#: Largest tensor, in bytes, that is read a second time within a turn.
_SMALL = 2**20


def named_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers that a state dict holds, by name. A tied tensor comes under its first name."""
    left_out = {
        f"{prefix}.{name}".lstrip(".")
        for prefix, part in module.named_modules()
        for name in part._non_persistent_buffers_set
    }
    yield from module.named_parameters()
    yield from ((name, buffer) for name, buffer in module.named_buffers() if name not in left_out)


class RegisteredObjects:
    """The objects that the script passed to `register`, by their names."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)
        #: id of an object -> its registered name.
        self.names = {id(value): name for name, value in values.items()}
        self._held: dict[int, weakref.ref[Any]] = {}
        self.note_held()

    def note_held(self) -> None:
        """Note the tensors and arrays that the registered objects hold now."""
        for value in self._values.values():
            self._held |= {_memory(each): weakref.ref(each) for each in _arrays(value)}

    def holder(self, value: object) -> str | None:
        """Return the name of the registered object that has `value` as an attribute, as a wrapper has its environment."""
        held = ((name, each) for name, of in self._values.items() for each in attributes(of).values())
        return next((name for name, each in held if each is value), None)

    def was_held(self, value: object) -> bool:
        """Report whether a registered object held `value` when it was noted, or a tensor of the same memory.

        A restore may fill it, or put another in its place.
        """
        reference = self._held.get(_memory(value))
        return reference is not None and (held := reference()) is not None and _memory(held) == _memory(value)

    def is_replaced(self, name: str, value: object) -> bool:
        """Report whether `value` has the exact type of the object registered as `name`, but is another object."""
        registered = self._values.get(name)
        return registered is not None and value is not registered and type(value) is type(registered)

    def kinds(self) -> dict[str, str]:
        """Return the type of each registered object, by name."""
        return {name: type(value).__name__ for name, value in self._values.items()}

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        yield from ((name, value) for name, value in self._values.items() if isinstance(value, nn.Module))

    def optimizers(self) -> Iterator[Optimizer]:
        yield from (value for value in self._values.values() if isinstance(value, Optimizer))

    def parameter_names(self) -> dict[int, str]:
        """Return the name of each registered tensor, by the tensor's id."""
        names = {id(value): name for name, value in self._values.items() if isinstance(value, torch.Tensor)}
        for name, module in self.modules():
            for key, tensor in named_tensors(module):
                names.setdefault(id(tensor), f"{name}.{key}")
        return names

    def frozen(self) -> list[str]:
        """Return the names of the parameters whose `requires_grad` is off."""
        return [
            f"{name}.{key}"
            for name, module in self.modules()
            for key, parameter in module.named_parameters()
            if not parameter.requires_grad
        ]

    def evaluating(self) -> list[str]:
        """Return the names of the modules and their parts that are in evaluation mode."""
        return [
            f"{name}.{key}".rstrip(".")
            for name, module in self.modules()
            for key, part in module.named_modules()
            if not part.training
        ]

    def items(self, *, small: bool = False) -> dict[str, str]:
        """Return a checksum of each registered tensor and plain value, by name.

        Args:
            small: leave out tensors over 1 MiB, optimizers' moments and loaders.
        """
        checked: dict[str, str] = {}
        names = self.parameter_names()
        for name, value in self._values.items():
            if isinstance(value, nn.Module):
                pairs = named_tensors(value)
                checked |= {f"{name}.{k}": checksums.of_tensor(t) for k, t in pairs if _taken(t, small)}
            elif isinstance(value, Optimizer):
                checked |= of_optimizer(name, value, names, moments=not small)
            elif isinstance(value, torch.Tensor):
                if _taken(value, small):
                    checked[name] = checksums.of_tensor(value)
            elif isinstance(value, dict):
                flatten(name, value, checked)
            elif isinstance(value, ResumableLoader):
                if (
                    not small
                ):  # `kept`: whether this process has workers that stay, which a new process may not yet have
                    state = {key: each for key, each in value.state_dict().items() if key != "kept"}
                    flatten(name, state, checked)
            else:
                flatten(name, value.state_dict(), checked)
        return checked


def of_optimizer(
    name: str, optimizer: Optimizer, names: Mapping[int, str], *, moments: bool = True
) -> dict[str, str]:
    """Return checksums of an optimizer's group options, and of its state for each parameter."""
    checked: dict[str, str] = {}
    for number, group in enumerate(optimizer.param_groups):
        plain = {key: value for key, value in group.items() if key != "params"}
        flatten(f"{name}.group {number}", plain, checked)
    if moments:
        for number, (parameter, state) in enumerate(optimizer.state.items()):
            flatten(f"{name}.{names.get(id(parameter), f'parameter {number}')}", state, checked)
    return checked


def flatten(path: str, value: Any, found: dict[str, str], depth: int = 6) -> None:
    """Add a checksum of each tensor and plain value of a state dict to `found`, each under a name of its own."""
    if isinstance(value, torch.Tensor):
        found[path] = checksums.of_tensor(value)
    elif is_array(value, scalars=True):
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
    elif depth and (fields := saved_object(value)) is not None:
        flatten(path, fields.value, found, depth - 1)
    else:
        found[path] = type(value).__name__


def is_value(value: Any, depth: int = 3) -> bool:
    """Report whether a registered dict may hold `value`: a plain value, a tensor, a generator, or a container of such."""
    if isinstance(value, (dict, list, tuple, set, deque)):
        items = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(is_value(item, depth - 1) for item in items)
    if isinstance(value, (*checksums.ATOMS, torch.Tensor)):
        return not isinstance(value, nn.Parameter)
    return is_array(value, scalars=True) or checksums.of_generator(value) is not None


def _memory(value: object) -> int:
    return (checksums.address(value) if isinstance(value, torch.Tensor) else 0) or id(value)


def _arrays(value: Any, depth: int = 6) -> Iterator[Any]:
    if isinstance(value, torch.Tensor) or is_array(value):
        yield value
    elif isinstance(value, nn.Module):
        yield from (*value.parameters(), *value.buffers())
    elif isinstance(value, (Mapping, list, tuple, deque)) and depth:
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _arrays(each, depth - 1)
    elif depth:  # only what the object itself holds: a loader leads to a whole dataset
        for each in attributes(value).values():
            yield from _arrays(each, 0)


def _taken(tensor: torch.Tensor, small: bool) -> bool:
    return not small or tensor.nbytes <= _SMALL
