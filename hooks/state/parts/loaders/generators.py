"""The random number generators in a loader: of its samplers, its dataset, the transforms, and functions among them.

No other part saves them. Python's, NumPy's and torch's global ones are saved anyway, and are left out here.
"""

from __future__ import annotations

import functools
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ...inventory.objects import (
    attributes,
    generator_state,
    is_generator,
    outer_variables,
    set_generator,
)
from ...inventory.walk import reach

#: Limits of the search: attributes and items on a path, objects in all, items of one container. A longer one holds data.
_DEPTH, _OBJECTS, _LONG = 8, 4000, 200
#: Packages whose functions draw from no generator of their own.
_LIBRARIES = ("torch.", "torchdata.", "numpy.", "builtins", "collections", "functools", "abc", "typing")
_NOT_ENTERED = (torch.Tensor, nn.Module, type, types.ModuleType)


class OwnGenerators:
    """The generators that a loader holds, by where they are found.

    Args:
        loader: the loader. `look` searches it again, because a script may give its dataset another generator.
    """

    def __init__(self, loader: object) -> None:
        self._loader = loader
        self.look()

    def look(self) -> None:
        """Search the loader. It takes some ms at most, and so comes once a pass."""
        self._found: dict[str, Any] = {}
        #: Where a generator is that has no state to save, and its type, as of the last search.
        self.unsavable: dict[str, str] = {}
        ids = {id(each) for each in global_generators()}
        for path, value in objects(self._loader):
            kept = getattr(value, "bit_generator", value)
            if id(kept) in ids:
                continue
            if is_generator(value):
                ids.add(id(kept))
                if generator_state(value) is None:
                    self.unsavable[path] = type(value).__name__
                else:
                    self._found[path] = value

    def states(self) -> dict[str, Any]:
        """Return the generators' states, by where they are found."""
        return {path: generator_state(each) for path, each in self._found.items()}

    def set(self, states: dict[str, Any]) -> None:
        """Set the states that `states` returned."""
        for path, each in self._found.items():
            # accelerate's seedable sampler makes its generator when a pass begins, and seeds it then.
            if path in states:
                set_generator(each, states[path])


def global_generators() -> Iterator[Any]:
    """Yield Python's, torch's and NumPy's own, which each checkpoint has."""
    yield torch.default_generator
    yield random._inst
    if (numpy := sys.modules.get("numpy")) is not None:
        yield numpy.random.mtrand._rand
        yield numpy.random.mtrand._rand._bit_generator


def objects(root: object) -> Iterator[tuple[str, Any]]:
    """Yield each object that a loader holds, nearest first, with the path to it. Long containers hold data, and are not entered."""
    children = functools.partial(_children, classes=set())
    for path, value in reach(root, children, _is_entered, depth=_DEPTH, most=_OBJECTS):
        yield path.lstrip("."), value


def _is_entered(value: object) -> bool:
    return not isinstance(value, _NOT_ENTERED) and not is_generator(value)


def _children(owner: Any, classes: set[type]) -> Iterator[tuple[str, Any]]:
    if isinstance(owner, dict):
        if len(owner) <= _LONG:
            yield from ((f"[{key!r}]", value) for key, value in [*owner.items()])
    elif isinstance(owner, (list, tuple)):
        if len(owner) <= _LONG:
            yield from ((f"[{at}]", value) for at, value in enumerate(owner))
    elif isinstance(owner, functools.partial):
        yield from ((f"({step})", value) for step, value in [("func", owner.func), ("args", owner.args)])
        yield "(keywords)", owner.keywords
    elif isinstance(owner, (types.MethodType, types.BuiltinMethodType)):
        yield ".__self__", owner.__self__
        yield "", getattr(owner, "__func__", None)
    elif isinstance(owner, types.FunctionType):
        yield from _of_function(owner)
        yield from ((f"({name})", value) for name, value in outer_variables(owner).items())
        yield "(defaults)", owner.__defaults__ or ()
    else:
        # An iterator that runs has the generators of its samplers, which are found there.
        held = attributes(owner).items()
        yield from ((f".{name}", value) for name, value in held if name != "_iterator")
        for kind in type(owner).__mro__:
            if kind not in classes and not f"{kind.__module__}.".startswith(_LIBRARIES):
                classes.add(kind)
                functions = [each for each in vars(kind).values() if isinstance(each, types.FunctionType)]
                for each in functions:
                    yield from ((f".{each.__name__}{step}", value) for step, value in _of_function(each))


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the generators among the global names that a function uses."""
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if is_generator(value):
            yield f"({name})", value
