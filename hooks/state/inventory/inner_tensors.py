"""Tensors whose bytes are in inner tensors: torchao's 8-bit moments, quantized weights.

Such a class follows torch's protocol for `torch.compile`: `__tensor_flatten__` names the inner tensors and gives a
context of plain values, and `__tensor_unflatten__` makes the tensor from both. A checkpoint holds the inner tensors,
each under its own name.

A module's weight exists at a restore, so its inner tensors are filled in place, and the contexts are compared. A moment
does not exist before the optimizer's first step. So an optimizer's tree holds the outline of the tensor (`outline`),
and a restore makes the tensor from it. It finds the class by name among those that the process has loaded, and imports
nothing: a checkpoint cannot run code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from ....providers.errors import CheckpointError, StateError
from ..sharding.dtensor import is_dtensor
from .walk import walk

_PLAIN = (torch.Tensor, torch.nn.Parameter)
#: The key that tells an outline from a dict of the optimizer's own.
_OUTLINE = "spotguard.outline"
_FIELDS = {_OUTLINE, "context", "size", "stride", "requires_grad", "inner"}


class InnerTensor(NamedTuple):
    """A plain tensor inside another, and the place that holds it."""

    #: The attributes on the way to it, such as "qdata".
    path: str
    #: The attributes of the tensor around it, and its key there.
    table: dict[str, Any]
    key: str
    tensor: torch.Tensor


def inner(tensor: torch.Tensor) -> list[InnerTensor]:
    """Return the plain tensors that hold the tensor's bytes.

    The list is empty for a plain tensor and a DTensor, and for a class that does not follow the protocol.
    """
    if type(tensor) in _PLAIN or is_dtensor(tensor) or not hasattr(type(tensor), "__tensor_unflatten__"):
        return []
    found: list[InnerTensor] = []
    for key in _flatten(tensor)[0]:
        value: Any = vars(tensor).get(key)
        if type(value) in _PLAIN:
            found.append(InnerTensor(key, vars(tensor), key, value))
        elif isinstance(value, torch.Tensor) and (deeper := inner(value)):
            found += [each._replace(path=f"{key}.{each.path}") for each in deeper]
        else:
            return []
    return found


def _flatten(tensor: Any) -> tuple[list[str], Any]:
    names, context = tensor.__tensor_flatten__()
    return names, context


def description(name: str, tensor: torch.Tensor) -> str:
    """Return the class and the context of a tensor with inner tensors, as text. Equal tensors have equal text.

    Raises:
        StateError: the text would differ from process to process. The message begins with `name`.
    """
    context = repr(_flatten(tensor)[1])
    if " at 0x" in context:
        raise StateError(
            f"{name} is a {_name(type(tensor))} whose context holds an object without a text of its own, which cannot be "
            "saved; use a plain tensor, or leave it out [SG401]"
        )
    return f"{_name(type(tensor))} {context}"


def outlined(value: Any) -> Any:
    """Return a tree in which an outline stands for each tensor with inner tensors."""
    if isinstance(value, torch.Tensor):
        return _outline(value) if inner(value) else value
    return _with_each(value, outlined)


def _with_each(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a container like this one with each value changed; any other value as it is."""
    kind = type(value)
    if kind is dict:
        return {key: change(each) for key, each in value.items()}
    return kind([change(each) for each in value]) if kind in (list, tuple) else value


def _outline(tensor: torch.Tensor) -> dict[str, Any]:
    names, context = _flatten(tensor)
    return {
        _OUTLINE: _name(type(tensor)),
        "context": context,
        "size": tuple(tensor.shape),
        "stride": tensor.stride(),
        "requires_grad": tensor.requires_grad,
        "inner": {name: outlined(getattr(tensor, name)) for name in names},
    }


def is_outline(value: Any) -> bool:
    """Return whether a value of a tree stands for a tensor."""
    return type(value) is dict and _OUTLINE in value


def has_outline(value: Any) -> bool:
    """Return whether an outline is in a tree."""
    return any(is_outline(each) for _, each in walk(value))


def named(value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the plain tensors of an outline, with their paths."""
    for name, each in value["inner"].items():
        if is_outline(each):
            yield from ((f"{name}.{path}", tensor) for path, tensor in named(each))
        else:
            yield name, each


def check_outlines(name: str, value: Any) -> None:
    """Check that `whole` can make the tensors of a saved tree.

    Raises:
        CheckpointError: an outline does not have the form that this version writes.
        StateError: a class is not loaded here.
    """
    if is_outline(value):
        inside = value.get("inner")
        tensors = isinstance(inside, dict) and all(
            isinstance(each, torch.Tensor) or is_outline(each) for each in inside.values()
        )
        if set(value) != _FIELDS or not isinstance(value[_OUTLINE], str) or not tensors:
            raise CheckpointError(
                f"{name}: a saved tensor's outline is not in the form that spotguard writes"
            )
        if _class(value[_OUTLINE]) is None:
            raise StateError(
                f"{name}: the checkpoint holds a {value[_OUTLINE]}, and this process has loaded no such class; "
                "import the library that defines it, in the version that saved it, before restore"
            )
        value = inside
    if isinstance(value, dict):
        for key, each in value.items():
            check_outlines(f"{name}/{key}", each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            check_outlines(name, each)


def whole(value: Any) -> Any:
    """Return a tree with the tensors that its outlines stand for.

    Raises:
        StateError: a class refuses its inner tensors or its context.
    """
    if is_outline(value):
        made = _class(value[_OUTLINE])
        parts = {name: whole(each) for name, each in value["inner"].items()}
        size, stride = torch.Size(value["size"]), value["stride"]
        try:
            tensor = made.__tensor_unflatten__(parts, value["context"], size, stride)
            return tensor.requires_grad_(value["requires_grad"])
        except Exception as error:  # any code of the library that defines the class
            raise StateError(
                f"{value[_OUTLINE]} cannot be made from the checkpoint ({type(error).__name__}: {error}); use the "
                "version of its library that saved it"
            ) from error
    return _with_each(value, whole)


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _class(name: str) -> Any:
    waiting: list[type] = [torch.Tensor]
    while waiting:
        cls = waiting.pop()
        if _name(cls) == name and hasattr(cls, "__tensor_unflatten__"):
            return cls
        waiting += type.__subclasses__(cls)
    return None
