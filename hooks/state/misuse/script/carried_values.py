"""The values that a loop of a script may carry from turn to turn: numbers, tensors, arrays, containers, and iterators with a position."""

from __future__ import annotations

import ast
import enum
import gc
import io
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, GeneratorType, MethodType
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ...inventory import objects
from ...inventory.attribute_words import last_name
from ...inventory.call_stack import OURS, source_file, variables_of, walk
from ...inventory.reachable import MACHINERY
from .assignments import changed_by_itself, words_in
from .registered_names import RegisteredNames, nodes

NUMBERS = (int, float, bool)
FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)
CONTAINERS = (list, deque, set, dict, defaultdict, Counter)
#: Iterators over what they are given, beside those of `itertools`.
_ITERATED: tuple[Iterable[Any], ...] = ([], (), "", {}, set(), range(0))
_OVER = (zip, map, filter, enumerate, reversed, *map(type, map(iter, _ITERATED)))
#: Iterators without an end that yield numbers, or the same again.
_ENDLESS = frozenset({"count", "repeat"})
#: Limits of the search in what an iterator goes over.
_DEPTH, _OBJECTS = 4, 200


def is_carried(value: Any, names: RegisteredNames) -> bool:
    """Return whether a value of a script may be state that no checkpoint has, by its type and by what it has in it now."""
    kind = type(value)
    if kind in NUMBERS or is_setting(value):
        return True
    if kind in CONTAINERS:
        return bool(value)
    if issubclass(kind, tuple):  # as an LSTM's hidden state
        return any(is_carried(each, names) for each in value if type(each) not in NUMBERS)
    if kind is torch.Tensor or objects.is_array(value):
        return not names.owner_of(value)
    return is_iterator(value) and not any(
        names.owner_of(each) or _is_a_loaders(each) for each in _below(value)
    )


def is_setting(value: Any) -> bool:
    """Return whether a value tells which way a turn goes, and has no other use: a flag, the name of a phase, or a function."""
    return type(value) in (bool, str, *FUNCTIONS) or isinstance(value, enum.Enum)


def is_iterator(value: Any) -> bool:
    """Return whether a value has a position that only its own steps move."""
    if type(value) is GeneratorType:
        return value.gi_frame is not None and _has_position(value.gi_code)
    if isinstance(value, io.IOBase):
        return not value.closed and value.readable() and value.seekable()
    return type(value).__module__ == "itertools" or type(value) in _OVER


def _is_a_loaders(value: Any) -> bool:
    """Return whether a value is an iterator of a loader: these are found, or restored, elsewhere."""
    ours = type(value) is GeneratorType and value.gi_code.co_filename.startswith(OURS)
    return ours or isinstance(value, _BaseDataLoaderIter)


def _below(value: Any) -> Iterator[Any]:
    """Yield an iterator, and what it goes over."""
    waiting, seen = [(value, 0)], {id(value)}
    while waiting and len(seen) < _OBJECTS:
        each, depth = waiting.pop()
        yield each
        held: list[Any] = []
        if depth == _DEPTH or isinstance(each, (*MACHINERY, torch.Tensor, list, dict, set)):
            continue
        if type(each) is GeneratorType:
            if each.gi_frame is not None:
                variables = variables_of(each.gi_frame)
                held = [variables.get(name) for name in (*variables.maps[0], *each.gi_code.co_names)]
        else:
            held = gc.get_referents(each)
        for one in held:
            if one is not None and id(one) not in seen:
                seen.add(id(one))
                waiting.append((one, depth + 1))


def _has_position(code: CodeType) -> bool:
    """Return whether a generator's source surely goes over something, or counts: one that only draws begins as it goes on."""
    for each in walk(source_file(code.co_filename)):
        if not isinstance(each, ast.FunctionDef) or each.name != code.co_name:
            continue
        if each.lineno <= code.co_firstlineno + len(each.decorator_list) <= (each.end_lineno or 0):
            inside, own = [*nodes(each.body)], {*code.co_varnames}
            counts = any(word in own for node in inside for word in changed_by_itself(node))
            return counts or any(map(_yields_in_order, inside))
    return False


def _yields_in_order(node: Any) -> bool:
    if isinstance(node, ast.YieldFrom):
        return True
    if not isinstance(node, ast.For):
        return False
    yielded = [each for each in nodes(node.body) if isinstance(each, (ast.Yield, ast.YieldFrom))]
    if last_name(getattr(node.iter, "func", None)) in _ENDLESS:
        return any(words_in(node.target) & words_in(each) for each in yielded)
    return bool(yielded)
